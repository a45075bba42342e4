/** A run on the page: telling, pausing, saving, going on. */

import { CoreSession, TURN_LIMIT, openSaved, saveSession, temperatureFromText } from './package/src/index.js';
import { download, onFiles } from './files.js';

const $ = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString('en');
/** Rows of the turns' table that are kept: a long run has thousands of turns. */
const MAX_ROWS = 2_000;

export class Story {
  /** @type {import('./package/src/index.js').Model} */
  #model;
  /** @type {CoreSession | undefined} */
  #session;
  /** @type {AbortController | undefined} While a run goes on. */
  #running;
  /** How many turns the run takes at most. */
  #quote = 0n;

  constructor() {
    $('settings').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#guarded(() => this.#start());
    });
    $('pause').addEventListener('click', () => this.#guarded(() => (this.#running ? this.#pause() : this.#goOn())));
    $('step').addEventListener('click', () => this.#guarded(() => this.#goOn(1)));
    $('save').addEventListener('click', () => this.#guarded(() => this.#save()));
    onFiles($('load'), ([file]) => this.#load(file), (error) => this.#fail(error));
  }

  /** Takes another model; the run so far is given up. */
  async use(model) {
    await this.#stop();
    this.#session?.free();
    this.#session = undefined;
    this.#model?.free();
    this.#model = model;
    $('sections-label').textContent = `Sections of ${model.sectionCount}`;
    $('tokens').max = String(model.config.seq);
    if ($('tokens').valueAsNumber > model.config.seq) $('tokens').value = String(model.config.seq);
    this.#clear('');
    this.#buttons();
  }

  get model() {
    return this.#model;
  }

  async #start() {
    const params = {
      prompt: $('prompt').value,
      maxTokens: $('tokens').valueAsNumber,
      temperatureQ16: temperatureFromText($('temperature').value),
      seed: BigInt($('seed').value),
    };
    await this.#replace(CoreSession.start(this.#model, params));
    this.#quote = this.#model.quote(params);
    await this.#goOn();
  }

  /** Takes `session` for the one so far. */
  async #replace(session) {
    await this.#stop();
    this.#session?.free();
    this.#session = session;
    this.#clear(session.prompt());
  }

  /** Runs until the end, a pause, or for `turns` turns. */
  async #goOn(turns) {
    const running = new AbortController();
    let finish;
    running.done = new Promise((resolve) => (finish = resolve));
    this.#running = running;
    this.#buttons();
    this.#say('Telling…');
    try {
      for await (const turn of this.#session.run({ turns, signal: running.signal })) {
        this.#show(turn);
        await frame();
      }
      const { complete, turns: done } = this.#session.info();
      this.#say(complete ? `Finished after ${number(done)} turns.` : `Paused after ${number(done)} turns.`);
    } finally {
      this.#running = undefined;
      finish();
      this.#buttons();
    }
  }

  #pause() {
    this.#running?.abort();
  }

  async #stop() {
    const running = this.#running;
    running?.abort();
    await running?.done;
  }

  async #save() {
    await this.#stop();
    const { turns } = this.#session.info();
    download(`facit-after-turn-${turns}.state`, await saveSession(this.#session));
    this.#say(`Saved after ${number(turns)} turns. \`facit resume\` goes on with it too.`);
  }

  async #load({ bytes }) {
    const session = await openSaved(this.#model, bytes);
    await this.#replace(session);
    const { maxTokens, temperatureQ16, turns, generated, complete } = session.info();
    this.#quote = this.#model.quote({ prompt: session.prompt(), maxTokens, temperatureQ16 });
    this.#showText();
    $('turn').textContent = this.#of(turns);
    $('generated').textContent = `${generated} of ${maxTokens}`;
    $('digest').textContent = await session.digest();
    this.#say(`Loaded after ${number(turns)} turns. ${complete ? 'The run has ended.' : 'Press Resume to go on.'}`);
    this.#buttons();
  }

  #of(turn) {
    return this.#quote > 0n ? `${number(turn)} of ${number(this.#quote)}` : number(turn);
  }

  #showText() {
    // An incomplete character at the end waits for its other bytes.
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    $('made').textContent = decoder.decode(this.#session.textBytes(), { stream: !this.#session.info().complete });
  }

  #show(turn) {
    if (turn.newTokens.length > 0) this.#showText();
    const sections = [0, ...turn.sections].join(', ');
    $('turn').textContent = this.#of(turn.turn);
    $('generated').textContent = `${turn.generated} of ${this.#session.info().maxTokens}`;
    $('sections').textContent = sections;
    $('units').value = turn.work;
    $('units-text').textContent = `${number(turn.work)} of ${number(TURN_LIMIT)}`;
    $('digest').textContent = turn.stateSha256;
    const row = $('turns').insertRow(0);
    for (const value of [turn.turn, sections, number(turn.work), turn.generated, turn.stateSha256.slice(0, 16)]) {
      row.insertCell().textContent = String(value);
    }
    if ($('turns').rows.length > MAX_ROWS) $('turns').deleteRow(MAX_ROWS);
  }

  #clear(prompt) {
    $('given').textContent = prompt;
    $('made').textContent = '';
    $('turns').replaceChildren();
    for (const id of ['turn', 'generated', 'sections', 'digest']) $(id).textContent = '–';
    $('units').value = 0;
    $('units-text').textContent = `0 of ${number(TURN_LIMIT)}`;
    this.#say('');
  }

  #buttons() {
    const running = this.#running !== undefined;
    const open = this.#session !== undefined && !this.#session.info().complete;
    $('tell').disabled = false;
    $('tell').textContent = this.#session ? 'Tell again' : 'Tell';
    $('pause').disabled = !running && !open;
    $('pause').textContent = running || !open ? 'Pause' : 'Resume';
    $('step').disabled = running || !open;
    $('save').disabled = this.#session === undefined;
  }

  #say(text) {
    $('status').classList.remove('bad');
    $('status').textContent = text;
  }

  #fail(error) {
    $('status').classList.add('bad');
    $('status').textContent = error.message;
    this.#buttons();
  }

  async #guarded(action) {
    try {
      await action();
    } catch (error) {
      this.#fail(error);
    }
  }
}

/** Lets the page be drawn; a hidden one is not, and must go on all the same. */
function frame() {
  return new Promise((resolve) => (document.hidden ? setTimeout(resolve) : requestAnimationFrame(resolve)));
}
