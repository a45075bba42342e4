/** Starts the page: loads core and model, verifies receipts, converts models. The story is story.js. */

import { loadCore, sha256, verifyReceipt } from './package/src/index.js';
import { download, onFiles } from './files.js';
import { Story } from './story.js';

const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString('en');

function say(id, text, kind = '') {
  $(id).className = kind;
  $(id).textContent = text;
}

async function start() {
  const core = await loadCore();
  const response = await fetch('facit-tales.facit');
  if (!response.ok) throw new Error(`the built-in model cannot be loaded: HTTP status ${response.status}`);
  const story = new Story();
  await use(story, await core.model(new Uint8Array(await response.arrayBuffer())), 'Facit Tales, the built-in model');
  verifying(story);
  converting(core, story);
  for (const id of ['receipt', 'convert']) $(id).disabled = false;
  document.documentElement.dataset.ready = core.simd ? 'simd128' : 'plain';
}

async function use(story, model, name) {
  await story.use(model);
  const { dim, layers, vocab, seq } = model.config;
  $('model').textContent =
    `${name}: ${number(model.bytes)} bytes, ${layers} layers of ${dim}, ${number(vocab)} tokens, context ${seq}. SHA-256 ${model.sha256}. ` +
    (model.core.simd ? 'Computing with 128-bit vectors.' : 'Computing without vectors.');
}

function verifying(story) {
  const bar = $('verify-progress');
  const verify = async ([{ bytes }]) => {
    say('verdict', 'Reading the receipt…');
    bar.value = 0;
    bar.hidden = false;
    $('receipt').disabled = true;
    try {
      const onTurn = ({ turn }, of) => {
        bar.max = of;
        bar.value = turn;
        // Now and then the page is drawn.
        return turn % 8 === 0 ? new Promise((resolve) => setTimeout(resolve)) : undefined;
      };
      const { turns, tokens } = await verifyReceipt(story.model, bytes, { onTurn });
      const last = turns.at(-1)?.state_sha256 ?? 'none';
      say('verdict', `Confirmed: all ${number(turns.length)} turns and ${number(tokens.length)} tokens are as recorded. Last state ${last}.`, 'good');
    } finally {
      $('receipt').disabled = false;
      bar.hidden = true;
    }
  };
  onFiles($('receipt'), verify, (error) => say('verdict', `Refused. ${error.message}`, 'bad'));
}

function converting(core, story) {
  let artifact;
  const convert = async (files) => {
    if (files.length !== 2) throw new Error('Give both files at once: the checkpoint and its tokenizer.');
    say('converted', 'Converting…');
    await new Promise((resolve) => setTimeout(resolve)); // so that this is read before the work
    // The checkpoint is the one that converts as such; a tokenizer never does.
    files.sort((a, b) => b.bytes.length - a.bytes.length);
    artifact = convertEither(core, files[0].bytes, files[1].bytes);
    for (const id of ['download', 'use']) $(id).disabled = false;
    say('converted', `Converted: ${number(artifact.length)} bytes, SHA-256 ${await sha256(artifact)}.`, 'good');
  };
  onFiles($('convert'), convert, (error) => say('converted', error.message, 'bad'));
  $('download').addEventListener('click', () => download('model.facit', artifact));
  $('use').addEventListener('click', async () => {
    try {
      await use(story, await core.model(artifact), 'The converted model');
    } catch (error) {
      say('converted', error.message, 'bad');
    }
  });
}

/** The larger file is nearly always the checkpoint; a large vocabulary's tokenizer may not be. */
function convertEither(core, larger, smaller) {
  try {
    return core.convert(larger, smaller);
  } catch (error) {
    try {
      return core.convert(smaller, larger);
    } catch {
      throw error;
    }
  }
}

start().catch((error) => {
  say('model', `This page cannot start: ${error.message}`, 'bad');
});
