// Opens each page of the dashboard at two widths, in both themes, and fails where the browser or axe complains.
//
//   node check.mjs ADMIN HTTP DIRECTORY     screenshots go to the directory

import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

const [admin, http, directory] = process.argv.slice(2);
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
mkdirSync(directory, { recursive: true });

const problems = [];
// The bytes of the largest page with its styles and scripts.
let largest = 0;
const complain = (where, what) => problems.push(`${where}: ${what}`);

const acquire = (limit, key) =>
  fetch(`${http}/v1/acquire`, { method: 'POST', body: JSON.stringify({ limit, key }) });

// Some keys ask much more often than others; the busiest are denied.
let going = true;
async function traffic() {
  const keys = Array.from({ length: 40 }, (_, at) => `user-${at + 1}`);
  for (let at = 0; going; at += 1) {
    const key = keys[Math.floor(keys.length * ((at * 0.618034) % 1) ** 3)];
    await Promise.all([
      acquire('per-user', key),
      acquire('logins', at % 9 === 0 ? 'mallory@example.com' : `${key}@example.com`),
      at % 3 === 0 ? acquire('search', key) : null,
      at % 5 === 0 ? acquire('everyone', null) : null,
    ]);
    await new Promise((done) => setTimeout(done, 4 + 10 * Math.abs(Math.sin(at / 150))));
  }
}

// A stand-in for a program that links tidegate::flow. A test of the server uses the real thing.
async function program() {
  for (let at = 0; going; at += 1) {
    const now = Math.floor(Date.now() / 1000);
    const second = (pass, block, errors, rt) => [[now - 1, pass, block, errors, pass, pass * rt, 9]];
    const resources = [
      { name: 'payments', in_flight: 4, seconds: second(120 + (at % 7) * 9, (at % 5) * 6, at % 3, 8_400), breakers: [['payments: errors', at % 6 < 4 ? 'open' : 'closed']] },
      { name: 'GET:/orders/{id}', in_flight: 11, seconds: second(640 + (at % 11) * 20, 0, 0, 2_100), adaptive: [['vegas', 48]] },
      { name: 'search', in_flight: 2, seconds: second(35, 0, 0, 31_000) },
    ];
    await fetch(`${admin}/v1/flow/report`, { method: 'POST', body: JSON.stringify({ app: 'shop', instance: 'shop-1', now, resources }) });
    await new Promise((done) => setTimeout(done, 1_000));
  }
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});
const busy = Promise.all([traffic(), program()]);

async function open(path, width, theme, bypassCSP = false) {
  const context = await browser.newContext({
    baseURL: admin,
    colorScheme: theme,
    viewport: { width, height: 900 },
    bypassCSP,
  });
  const page = await context.newPage();
  const where = `${path} at ${width}, ${theme}`;
  const home = path.startsWith('file:') ? path : new URL(path, admin).origin;
  page.on('console', (message) => message.type() === 'error' && complain(where, message.text()));
  page.on('pageerror', (error) => complain(where, error));
  page.on('request', (request) => {
    if (!request.url().startsWith(home)) complain(where, `asks another host: ${request.url()}`);
  });
  await page.goto(path);
  return { context, page, where };
}

async function audit(page, where) {
  await page.addScriptTag({ path: axe });
  const { violations } = await page.evaluate(() => window.axe.run());
  for (const violation of violations) {
    complain(where, `${violation.id}: ${violation.help}: ${violation.nodes.map((node) => node.html).slice(0, 3).join(' ')}`);
  }
}

// All widths and themes at once: mostly the browser waits for something.
async function look(path, name, widths = [390, 1440]) {
  await Promise.all(widths.flatMap((width) => ['light', 'dark'].map((theme) => lookAs(path, name, width, theme))));
}

async function lookAs(path, name, width, theme) {
  const { context, page, where } = await open(path, width, theme);
  const overflow = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
  );
  if (overflow > 0) complain(where, `${overflow} pixels are beside the screen`);
  const bytes = await page.evaluate(() =>
    ['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind)).reduce((sum, entry) => sum + entry.decodedBodySize, 0),
  );
  // A report on a disk has the charts of a whole log in it.
  if (!path.startsWith('file:') && (bytes === 0 || bytes > 100 * 1024)) complain(where, `page, styles and scripts have ${bytes} bytes`);
  largest = Math.max(largest, path.startsWith('file:') ? 0 : bytes);
  await page.screenshot({ path: `${directory}/${name}-${width}-${theme}.png`, fullPage: width < 700 });
  // The pages' policy lets no script in; axe is put in past it, in a world of its own.
  const relaxed = await browser.newContext({ baseURL: admin, colorScheme: theme, viewport: { width, height: 900 }, bypassCSP: true });
  const audited = await relaxed.newPage();
  await audited.goto(path);
  await audit(audited, where);
  await relaxed.close();
  await context.close();
}

// A key is blocked with the keyboard alone, after a question; then it is unblocked. The page changes by itself, and stops when
// it is told to.
async function use() {
  const path = '/limit?name=logins&key=mallory%40example.com';
  const { context, page, where } = await open(path, 1440, 'light');
  const expect = async (what, check) => {
    for (let tries = 0; tries < 100; tries += 1) {
      if (await check()) return;
      await page.waitForTimeout(100);
    }
    complain(where, `not seen: ${what}`);
  };
  const status = async () => (await page.locator('#status').textContent()) ?? '';
  const button = (name) => page.locator('section.card').getByRole('button', { name, exact: true });
  await button('Block mallory@example.com in logins?').focus();
  await page.keyboard.press('Enter');
  if (!(await page.locator('#question').textContent()).includes('mallory@example.com')) complain(where, 'no question');
  await page.keyboard.press('Escape');
  if ((await status()) !== '') complain(where, 'a block without a yes');
  await page.keyboard.press('Enter');
  await page.keyboard.press('Tab');
  await page.keyboard.press('Enter');
  await expect('that it is done', async () => (await status()) === 'Done.');
  const denied = await acquire('logins', 'mallory@example.com');
  if (denied.status !== 429 || (await denied.json()).retry_after_ms !== null) complain(where, 'the key is not blocked');
  await button('Unblock mallory@example.com in logins?').click();
  await page.locator('#ask button.danger').click();
  await expect('that it is unblocked', async () => (await status()) === 'Done.');
  await page.locator('#cost').fill('2');
  await button('Refund mallory@example.com in logins?').click();
  await page.locator('#ask button.danger').click();
  await expect('that it is refunded', async () => (await status()) === 'Done.');
  await page.locator('#quota').fill('500/1m');
  await page.locator('#for').fill('1h');
  await button('Override the quota of mallory@example.com in logins?').click();
  await page.locator('#ask button.danger').click();
  await expect('that it is overridden', async () => (await status()) === 'Done.');
  if ((await acquire('logins', 'mallory@example.com')).status !== 200) complain(where, 'the own quota is not in force');
  await page.goto(path);
  if (!(await page.locator('section.card').textContent()).includes('Its own quota: 500/1m, for another')) complain(where, 'the own quota is not shown');
  await button('End the own quota of mallory@example.com in logins?').click();
  await page.locator('#ask button.danger').click();
  await expect('that it is ended', async () => (await status()) === 'Done.');
  await page.locator('#quota').fill('much');
  await button('Override the quota of mallory@example.com in logins?').click();
  await page.locator('#ask button.danger').click();
  await expect('what a quota looks like', async () => (await status()).includes('`much`'));
  const shown = () => page.locator('#live').innerHTML();
  const before = await shown();
  await expect('a change', async () => (await shown()) !== before);
  const link = page.locator('#live a').first();
  await link.focus();
  const held = await shown();
  await expect('another change', async () => (await shown()) !== held);
  if (!(await link.evaluate((element) => element === document.activeElement))) complain(where, 'the focus is lost');
  await page.locator('#pause').click();
  const paused = await shown();
  await page.waitForTimeout(2500);
  if ((await shown()) !== paused) complain(where, 'it changes although it is paused');
  await context.close();
}

// A change of the rules: a mistake is told with its line, a candidate is tried on the trace, and saved after a question.
async function edit() {
  // Past the pages' policy, so that axe can look at what a script has made.
  const { context, page, where } = await open('/rules', 390, 'dark', true);
  const expect = async (what, check) => {
    for (let tries = 0; tries < 100; tries += 1) {
      if (await check()) return;
      await page.waitForTimeout(100);
    }
    complain(where, `not seen: ${what}`);
  };
  const text = page.locator('#text');
  const checked = async () => (await page.locator('#checked').textContent()) ?? '';
  const before = await text.inputValue();
  await expect('that nothing is wrong', async () => (await checked()).includes('as in the file'));
  await text.fill(before.replace('limit: 20/1m', 'limit: 20'));
  await expect('the mistake', async () => (await checked()).includes('1 mistakes'));
  await page.getByRole('button', { name: 'Line 3' }).click();
  const selected = await text.evaluate((area) => area.value.slice(area.selectionStart, area.selectionEnd));
  if (!selected.includes('name: logins')) complain(where, `the button leads to: ${selected}`);
  if (await page.locator('#save').isEnabled()) complain(where, 'a mistake can be saved');
  await text.fill(before.replace('limit: 20/1m', 'limit: 10/1m'));
  await expect('the difference', async () => (await page.locator('#diff .added').textContent())?.includes('10/1m'));
  await page.locator('#try').click();
  await expect('what it would deny', async () => (await page.locator('#tried table').count()) > 0);
  await page.screenshot({ path: `${directory}/rules-tried-390-dark.png`, fullPage: true });
  const overflow = await page.evaluate(
    () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
  );
  if (overflow > 0) complain(where, `${overflow} pixels are beside the screen after a try`);
  await audit(page, where);
  await page.locator('#save').click();
  await page.locator('#ask button.danger').click();
  await expect('that it is saved', async () => (await checked()).includes('Saved and loaded'));
  const { text: now } = await (await fetch(`${admin}/v1/rules/file`)).json();
  if (!now.includes('limit: 10/1m')) complain(where, 'the file is as it was');
  await context.close();
}

// Rules are pushed to the programs of an application.
async function push() {
  const { context, page, where } = await open('/flow?app=shop', 390, 'dark');
  await page.locator('summary').click();
  await page.locator('#rules').fill('flow:\n  - {resource: payments, limit: none}\n');
  const answer = async () => {
    await page.getByRole('button', { name: 'Push' }).click();
    await page.locator('#ask button.danger').click();
    await page.waitForFunction(() => document.getElementById('status').textContent !== '');
    return page.locator('#status').textContent();
  };
  if (!(await answer()).includes('the previous rules stay active')) complain(where, 'a mistake is not told');
  await page.locator('#rules').fill('flow:\n  - {resource: payments, limit: 100/1s}\n');
  await page.evaluate(() => { document.getElementById('status').textContent = ''; });
  if ((await answer()) !== 'Done.') complain(where, 'the rules were not pushed');
  await page.goto('/flow?app=shop');
  await page.locator('summary').click();
  if (!(await page.locator('#rules').inputValue()).includes('100/1s')) complain(where, 'the pushed rules are not shown');
  await context.close();
}

await new Promise((done) => setTimeout(done, Number(process.env.TRAFFIC_MS ?? 12_000)));
await look('/', 'overview');
await look('/limit?name=logins', 'limit');
await look('/limit?name=logins&key=mallory%40example.com', 'key');
await look('/rules', 'rules');
await look('/limit?name=nobody', 'missing');
// Of another server, which has a store.
if (process.env.TIDEGATE_SHARED) {
  const shared = process.env.TIDEGATE_SHARED;
  let seen = [];
  for (let tries = 0; tries < 600 && seen.length < 2; tries += 1) {
    const told = await fetch(`${shared}/v1/servers`);
    seen = told.ok ? (await told.json()).servers.map((server) => server.name) : [];
    await new Promise((done) => setTimeout(done, 100));
  }
  if (seen.join() !== 'one,two') complain('/servers', `not both servers are seen: ${seen.join()}`);
  await look(`${shared}/servers`, 'servers');
}
if (process.env.TIDEGATE_REPORT) await look(process.env.TIDEGATE_REPORT, 'report', [400, 1440]);
await look('/flow', 'programs');
await look('/flow?app=shop', 'flow');
await use();
await edit();
await push();
going = false;
await busy;
await browser.close();
// The console calls each refusal an error: of a page that is not there, and of the quota and the rules that are wrong on purpose.
const meant = /nobody.*status of 404|mallory.*status of 400|app=shop.*status of 422/;
for (const problem of problems.filter((problem) => !meant.test(problem))) {
  console.error(problem);
  process.exitCode = 1;
}
if (!process.exitCode) console.log(`the pages are as they should be, the largest with ${largest} bytes; screenshots are in ${directory}`);
