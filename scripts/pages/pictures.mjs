// Takes the pictures of the book. It uses the demo for five minutes, as an operator would.
//
//   node pictures.mjs ADMIN REPORT DIRECTORY

import { chromium } from 'playwright-core';

const [admin, report, directory] = process.argv.slice(2);
const pause = (seconds) => new Promise((done) => setTimeout(done, 1_000 * seconds * Number(process.env.SPEED ?? 1)));

async function post(path, body) {
  const response = await fetch(`${admin}${path}`, { method: 'POST', body: JSON.stringify(body) });
  if (!response.ok) throw new Error(`${path}: ${await response.text()}`);
}

await pause(120);
await post('/v1/mark', { note: 'shop 1.4 deployed' });
await pause(90);
await post('/v1/block', { limit: 'per-user', key: 'scraper', for: '1h', note: 'scrapes prices' });
await pause(90);

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
const context = await browser.newContext({ baseURL: admin, colorScheme: 'light', viewport: { width: 1200, height: 900 } });

// The part of a page from one element to the end of another one.
async function take(path, name, until, prepare = async () => {}, from = 'body') {
  const page = await context.newPage();
  await page.goto(path);
  await prepare(page);
  const box = await page.locator(until).first().boundingBox();
  const top = Math.floor((await page.locator(from).first().boundingBox()).y);
  const height = Math.ceil(box.y + box.height + 16 - top);
  await page.screenshot({ path: `${directory}/${name}.png`, fullPage: true, clip: { x: 0, y: top, width: 1200, height } });
  await page.close();
}

await take('/', 'dashboard', 'table.limits');
await take('/limit?name=per-user&key=scraper', 'key', 'figure.time-chart');
await take('/rules', 'what-if', '#tried details.card', async (page) => {
  const text = page.locator('#text');
  await text.fill((await text.inputValue()).replace('limit: 60/1m', 'limit: 30/1m').replace('limit: 5/1m', 'limit: 3/1m'));
  await page.locator('#try:enabled').click();
  await page.locator('#tried details.card').first().waitFor();
}, '#tried');
await take(report, 'report', 'div.heat-row:last-child');
await browser.close();
