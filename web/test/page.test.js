/** The page in Chromium against native digests and the golden data. */

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { describe, test } from 'node:test';

import { finished, tell, withPage } from './browser.js';
import { ROOT, facit, file, forge, golden, nativeReceipt, withFolder } from './helpers.js';

const upload = (page, id, ...files) =>
  page.setInputFiles(id, files.map((bytes, i) => ({ name: `file${i}`, mimeType: 'application/octet-stream', buffer: Buffer.from(bytes) })));
/** Drops files on the zone of an input, as a hand with a mouse does: the page only sees a drop. */
async function drop(page, id, ...files) {
  const transfer = await page.evaluateHandle((all) => {
    const data = new DataTransfer();
    all.forEach((bytes, i) => data.items.add(new File([Uint8Array.from(atob(bytes), (c) => c.charCodeAt(0))], `file${i}`)));
    return data;
  }, files.map((bytes) => Buffer.from(bytes).toString('base64')));
  const zone = page.locator('label.drop', { has: page.locator(id) });
  await zone.dispatchEvent('dragover', { dataTransfer: transfer });
  assert.match(await zone.getAttribute('class'), /\bover\b/, 'the zone shows that it takes files');
  await zone.dispatchEvent('drop', { dataTransfer: transfer });
  assert.doesNotMatch(await zone.getAttribute('class'), /\bover\b/);
}
const text = (page, id) => page.textContent(id);

describe('the page in Chromium', { timeout: 300_000 }, () => {
  test('a run equals the definition and the native binary', () =>
    withPage(async (page) => {
      const { wanted } = golden('greedy');
      await tell(page, { prompt: wanted.prompt, maxTokens: wanted.max_tokens });
      assert.equal(await text(page, '#digest'), wanted.final_sha256);
      assert.equal(await text(page, '#made'), wanted.text);
      assert.equal(await text(page, '#turn'), `${wanted.turns.length} of ${wanted.quote_turns}`);
      // Every turn's digest and charge, latest first.
      const rows = await page.locator('#turns tr').evaluateAll((all) => all.map((row) => [row.cells[2].textContent, row.cells[4].textContent]));
      const expected = wanted.turns.map(([, , , , work, , digest]) => [work.toLocaleString('en'), digest]);
      assert.deepEqual(rows.reverse(), expected);
      const native = JSON.parse(facit('run', '-q', '--json', wanted.prompt, '-n', String(wanted.max_tokens)));
      assert.equal(native.facit.state_sha256, wanted.final_sha256);
    }));

  test('above temperature zero, paused, saved, loaded into a fresh page and finished', async () => {
    const { wanted } = golden('t08');
    const saved = await withPage(async (page) => {
      await page.fill('#prompt', wanted.prompt);
      await page.fill('#tokens', String(wanted.max_tokens));
      await page.fill('#temperature', '0.8');
      await page.fill('#seed', wanted.seed);
      await page.click('#tell');
      await page.waitForFunction(() => document.querySelectorAll('#turns tr').length > 20);
      await page.click('#pause');
      await page.getByText(/Paused after/).waitFor();
      await page.click('#step');
      await page.getByText(/Paused after/).waitFor();
      const [download] = await Promise.all([page.waitForEvent('download'), page.click('#save')]);
      return readFileSync(await download.path());
    });
    await withPage(async (page) => {
      await upload(page, '#load', saved);
      await page.getByText(/Loaded after/).waitFor();
      await page.click('#pause');
      await finished(page);
      assert.equal(await text(page, '#digest'), wanted.final_sha256);
      assert.equal(await text(page, '#made'), wanted.text);
      saved[200] ^= 1;
      await upload(page, '#load', saved);
      await page.getByText(/changed after it was written/).waitFor();
    });
  });

  test('a native receipt is confirmed; a changed one refused, the turn named', () =>
    withFolder((folder) =>
      withPage(async (page) => {
        const receipt = nativeReceipt(folder, 'Once upon a time', '-n', '20');
        await drop(page, '#receipt', receipt);
        await page.getByText(/Confirmed: all \d+ turns and 20 tokens/).waitFor({ timeout: 120_000 });
        const forged = await forge(receipt, (r) => (r.turns[11].state_sha256 = r.turns[10].state_sha256));
        await drop(page, '#receipt', forged);
        await page.getByText(/Refused\. Turn 12: the state differs/).waitFor({ timeout: 120_000 });
        const bad = receipt.slice(); // chosen in the dialog this time
        bad[500] ^= 1;
        await upload(page, '#receipt', bad);
        await page.getByText(/bytes were changed after it was written/).waitFor();
      }),
    ));

  test('two dropped files become the committed artifact, and tell stories', () =>
    withPage(async (page) => {
      const folder = 'assets/facit-tales/';
      const { wanted } = golden('empty');
      await drop(page, '#convert', file(`${folder}tokenizer.bin`), file(`${folder}model.bin`));
      await page.getByText(/Converted:/).waitFor({ timeout: 60_000 });
      const [download] = await Promise.all([page.waitForEvent('download'), page.click('#download')]);
      assert.deepEqual(readFileSync(await download.path()), readFileSync(`${ROOT}${folder}facit-tales.facit`));
      await page.click('#use');
      await page.getByText(/The converted model/).waitFor();
      await tell(page, { prompt: '', maxTokens: wanted.max_tokens });
      assert.equal(await text(page, '#digest'), wanted.final_sha256);
      await drop(page, '#convert', file(`${folder}tokenizer.bin`));
      await page.getByText(/Give both files at once/).waitFor();
    }));

  test('what cannot run is refused in words', () =>
    withPage(async (page) => {
      await page.fill('#temperature', '17');
      await page.click('#tell');
      await page.getByText(/temperature must be 0 to 16/).waitFor();
      await page.fill('#temperature', '0');
      await page.fill('#tokens', '512');
      await page.click('#tell');
      await page.getByText(/shorten one of them/).waitFor();
    }));

  test('a phone shows it without scrolling sideways', () =>
    withPage(
      async (page) => {
        await tell(page, { prompt: 'The dog', maxTokens: 8 });
        const [wide, screen] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
        assert.ok(wide <= screen, `${wide} pixels on a screen of ${screen}`);
      },
      { viewport: { width: 360, height: 740 } },
    ));
});
