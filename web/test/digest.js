/**
 * The built-in model's story in JavaScript: `node web/test/digest.js plain|simd128|chromium` prints
 * backend, tokens, turns and the SHA-256 of the final state, as crates/fixed/examples/digest.rs does.
 */

import { CoreSession, loadCore } from '../package/src/index.js';
import { tell, withPage } from './browser.js';
import { artifact } from './helpers.js';

const PROMPT = 'Once upon a time';
const MAX_TOKENS = 120;

async function inNode(simd) {
  const model = await (await loadCore({ simd })).model(artifact);
  const session = CoreSession.replay(model, { prompt: PROMPT, maxTokens: MAX_TOKENS });
  const { generated, turns } = session.info();
  return [simd ? 'simd128' : 'plain', generated, turns, await session.digest()];
}

function inChromium() {
  return withPage(async (page) => {
    await tell(page, { prompt: PROMPT, maxTokens: MAX_TOKENS });
    const [backend, generated, turns, digest] = await page.evaluate(() => {
      const text = (id) => document.getElementById(id).textContent;
      return [document.documentElement.dataset.ready, text('generated'), text('turn'), text('digest')];
    });
    return [backend, parseInt(generated, 10), parseInt(turns, 10), digest];
  });
}

const ways = { plain: () => inNode(false), simd128: () => inNode(true), chromium: inChromium };
const way = ways[process.argv[2]];
if (!way) throw new Error(`say one of ${Object.keys(ways).join(', ')}`);
console.log((await way()).join('\t'));
