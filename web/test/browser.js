/** Debian's Chromium with the page in it. */

import { existsSync } from 'node:fs';
import { chromium } from 'playwright-core';
import { serve } from './server.js';

const CHROMIUM = process.env.CHROMIUM ?? '/usr/bin/chromium';

/** Opens the page, calls `use` with it, and fails on any error that it reports on its console. */
export async function withPage(use, options = {}) {
  if (!existsSync(CHROMIUM)) throw new Error(`${CHROMIUM} is missing: run scripts/setup.sh as root (Debian 12)`);
  const server = await serve();
  const browser = await chromium.launch({
    executablePath: CHROMIUM,
    args: [
      '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
      '--disable-background-networking', '--disable-component-update', '--disable-sync',
    ],
  });
  try {
    const page = await browser.newPage(options);
    const faults = [];
    page.on('pageerror', (error) => faults.push(error.message));
    page.on('console', (message) => message.type() === 'error' && faults.push(message.text()));
    // The page must work with nothing but its own files.
    page.on('request', (request) => {
      if (!/^(blob|data):/.test(request.url()) && !request.url().startsWith(server.url)) faults.push(`asks for ${request.url()}`);
    });
    await page.goto(server.url);
    await page.waitForSelector('html[data-ready]', { timeout: 120_000 });
    const result = await use(page);
    if (faults.length > 0) throw new Error(`the page reports: ${faults.join('; ')}`);
    return result;
  } finally {
    await browser.close();
    server.close();
  }
}

/** Fills in the settings and tells the story to its end. */
export async function tell(page, { prompt, maxTokens, temperature = '0', seed = '0' }) {
  await page.fill('#prompt', prompt);
  await page.fill('#tokens', String(maxTokens));
  await page.fill('#temperature', temperature);
  await page.fill('#seed', seed);
  await page.click('#tell');
  await finished(page);
}

/** Waits for the run on the page to end. */
export async function finished(page) {
  await page.getByText(/Finished after/).waitFor({ timeout: 120_000 });
}
