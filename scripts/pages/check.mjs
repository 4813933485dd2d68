// Opens each page of the dashboard at two widths, in both themes, and fails where the browser or axe complains.
//
//   node check.mjs ADMIN HTTP DIRECTORY     screenshots go to the directory

import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { chromium } from 'playwright-core';

let [admin, http, directory] = process.argv.slice(2);
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
  going = true;
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
    ignoreHTTPSErrors: true,
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
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  if (path.startsWith('file:') && width === 390 && height > 4000) complain(where, `the report is ${height} pixels long`);
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

// Runs one step of the check. An error is a problem of this step, and the steps after it still run.
async function step(name, run) {
  try {
    await run();
  } catch (error) {
    complain(`step "${name}"`, error.message.split('\n')[0]);
  }
}

// Polls for ten seconds; no test can say when a browser has drawn.
async function expect(page, where, what, check) {
  for (let tries = 0; tries < 100; tries += 1) {
    if (await check()) return;
    await page.waitForTimeout(100);
  }
  complain(where, `not seen: ${what}`);
}

// Does something that posts to this path, and waits for the server's response to it.
async function posts(page, path, act) {
  const [response] = await Promise.all([
    page.waitForResponse((response) => response.request().method() === 'POST' && new URL(response.url()).pathname === path),
    act(),
  ]);
  return response;
}

const yes = (page) => page.locator('#ask button.danger').click();

// A key is blocked with the keyboard alone, after a question; then it is unblocked, refunded and overridden. The page changes by
// itself until Pause stops it.
async function use() {
  const path = '/limit?name=logins&key=mallory%40example.com';
  const { context, page, where } = await open(path, 1440, 'light');
  const status = async () => (await page.locator('#status').textContent()) ?? '';
  const button = (name) => page.locator('section.card').getByRole('button', { name, exact: true });
  const key = 'mallory@example.com in logins';
  // An action whose question is answered with yes: its request is sent, and the status names it.
  const act = async (what, to, shown) => {
    const response = await posts(page, to, async () => {
      await button(`${what} ${key}?`).click();
      await yes(page);
    });
    await expect(page, where, `"${shown}" after "${what}"`, async () => (await status()).includes(shown));
    return response;
  };
  await step('block with the keyboard', async () => {
    await button(`Block ${key}?`).focus();
    await page.keyboard.press('Enter');
    if (!(await page.locator('#question').textContent()).includes('mallory@example.com')) complain(where, 'no question');
    await page.keyboard.press('Escape');
    if ((await status()) !== '') complain(where, 'a block without a yes');
    await posts(page, '/v1/block', async () => {
      await page.keyboard.press('Enter');
      await page.keyboard.press('Tab');
      await page.keyboard.press('Enter');
    });
    await expect(page, where, 'the block in the status', async () => (await status()) === `Blocked ${key}`);
    const denied = await acquire('logins', 'mallory@example.com');
    const { reason, retry_after_ms: wait } = await denied.json();
    if (denied.status !== 429 || reason !== 'blocked' || !(wait > 3_000_000 && wait <= 3_600_000)) complain(where, 'the key is not blocked');
  });
  await step('an answer belongs to its question', async () => {
    // The `close` event of the first question arrives when the second is open.
    await posts(page, '/v1/unblock', () => page.evaluate(async (label) => {
      const ask = document.getElementById('ask');
      const press = () => document.querySelector(`section.card button[aria-label="${label}"]`).click();
      press();
      ask.close();
      press();
      await new Promise((done) => setTimeout(done, 100));
      ask.querySelector('button.danger').click();
    }, `Unblock ${key}?`));
    await expect(page, where, 'that it is unblocked', async () => (await status()) === `Unblocked ${key}`);
  });
  await step('unblock again', () => act('Unblock', '/v1/unblock', 'was not blocked'));
  await step('refund', async () => {
    await page.locator('#cost').fill('2');
    await act('Refund', '/v1/refund', `Refunded ${key}`);
  });
  await step('override', async () => {
    await page.locator('#quota').fill('500/1m');
    await page.locator('#for').fill('1h');
    await act('Override the quota of', '/v1/override', `Overrode the quota of ${key}`);
    if ((await acquire('logins', 'mallory@example.com')).status !== 200) complain(where, 'the own quota is not in force');
  });
  await step('end the override', async () => {
    await page.goto(path);
    if (!(await page.locator('section.card').textContent()).includes('Its own quota: 500/1m, for another')) complain(where, 'the own quota is not shown');
    await act('End the own quota of', '/v1/override', `Ended the own quota of ${key}`);
  });
  await step('a mistake stays in the status until the next action', async () => {
    await page.locator('#quota').fill('much');
    const response = await act('Override the quota of', '/v1/override', '`much`');
    if (response.status() !== 400) complain(where, `a quota of "much" has the status ${response.status()}`);
    await act('Unblock', '/v1/unblock', 'was not blocked');
    if ((await status()).includes('much')) complain(where, 'the mistake is still in the status after the next action');
  });
  await step('changes, focus and pause', async () => {
    const shown = () => page.locator('#live').innerHTML();
    const before = await shown();
    await expect(page, where, 'a change', async () => (await shown()) !== before);
    const link = page.locator('#live a').first();
    await link.focus();
    const held = await shown();
    await expect(page, where, 'another change', async () => (await shown()) !== held);
    if (!(await link.evaluate((element) => element === document.activeElement))) complain(where, 'the focus is lost');
    await page.locator('#pause').click();
    const paused = await shown();
    await page.waitForTimeout(2500);
    if ((await shown()) !== paused) complain(where, 'it changes although it is paused');
  });
  await context.close();
}

// The first screen shows who is denied; the focus and a choice stay on their row while rows change.
async function overview() {
  for (const width of [390, 1440]) {
    const { context, page, where } = await open('/', width, 'light');
    await step('the first screen', async () => {
      const screen = width < 700 ? 844 : 900;
      // Asked again, because the row is replaced each second.
      await expect(page, where, `a denied key within the first ${screen} pixels`, async () => {
        const row = await page.locator('tr[data-row^="denied "]').first().boundingBox();
        return row && row.y + row.height <= screen;
      });
    });
    await context.close();
  }
  const { context, page, where } = await open('/', 1440, 'light');
  await step('focus and choice stay on their row', async () => {
    const name = 'tr[data-row="denied logins mallory%40example%2Ecom"]';
    await page.locator(`${name} select`).selectOption('1d');
    const link = 'tr[data-row="limit search"] a';
    await page.locator(link).focus();
    // The row moves up as soon as it has the most denials.
    const at = () => page.evaluate(() => [...document.querySelectorAll('.limits tbody tr')].findIndex((row) => row.dataset.row === 'limit search'));
    const before = await at();
    await expect(page, where, 'that the row moves', async () => {
      await Promise.all(Array.from({ length: 60 }, (_, key) => acquire('search', `flood-${key % 2}`)));
      return (await at()) !== before;
    });
    const focused = await page.evaluate(() => document.activeElement?.closest('tr')?.dataset.row);
    if (focused !== 'limit search') complain(where, `the focus went to ${focused}`);
    if ((await page.locator(`${name} select`).inputValue()) !== '1d') complain(where, 'the choice is lost');
  });
  await context.close();
}

// A change of the rules: the page names the line of a mistake, tries a candidate on the trace, and saves it after a question.
async function edit() {
  // Past the pages' policy, so that axe can look at what a script has made.
  const { context, page, where } = await open('/rules', 390, 'dark', true);
  const text = page.locator('#text');
  const checked = async () => (await page.locator('#checked').textContent()) ?? '';
  const before = await text.inputValue();
  await step('check a mistake', async () => {
    await expect(page, where, 'that nothing is wrong', async () => (await checked()).includes('as in the file'));
    await text.fill(before.replace('limit: 20/1m', 'limit: 20'));
    await expect(page, where, 'the mistake', async () => (await checked()).includes('1 mistakes'));
    await page.getByRole('button', { name: 'Line 3' }).click();
    const selected = await text.evaluate((area) => area.value.slice(area.selectionStart, area.selectionEnd));
    if (!selected.includes('name: logins')) complain(where, `the button leads to: ${selected}`);
    if (await page.locator('#save').isEnabled()) complain(where, 'a mistake can be saved');
  });
  await step('try a candidate', async () => {
    await text.fill(before.replace('limit: 20/1m', 'limit: 10/1m'));
    await expect(page, where, 'the difference', async () => (await page.locator('#diff .added').textContent())?.includes('10/1m'));
    await page.locator('#try').click();
    await expect(page, where, 'what it would deny', async () => (await page.locator('#tried table').count()) > 0);
    await page.screenshot({ path: `${directory}/rules-tried-390-dark.png`, fullPage: true });
    const overflow = await page.evaluate(
      () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
    );
    if (overflow > 0) complain(where, `${overflow} pixels are beside the screen after a try`);
    await audit(page, where);
  });
  await step('save', async () => {
    await posts(page, '/v1/rules/save', async () => {
      await page.locator('#save').click();
      await yes(page);
    });
    await expect(page, where, 'that it is saved', async () => (await checked()).includes('Saved and loaded'));
    const { text: now } = await (await fetch(`${admin}/v1/rules/file`)).json();
    if (!now.includes('limit: 10/1m')) complain(where, 'the file is as it was');
  });
  await context.close();
}

// Rules are pushed to the programs of an application.
async function push() {
  const { context, page, where } = await open('/flow?app=shop', 390, 'dark');
  const status = async () => (await page.locator('#status').textContent()) ?? '';
  const pushes = async (rules, shown) => {
    await page.locator('#rules').fill(rules);
    await posts(page, '/v1/flow/rules', async () => {
      await page.getByRole('button', { name: 'Push' }).click();
      await yes(page);
    });
    await expect(page, where, `"${shown}" in the status`, async () => (await status()).includes(shown));
  };
  await step('push a mistake', async () => {
    await page.locator('summary').click();
    await pushes('flow:\n  - {resource: payments, limit: none}\n', 'the previous rules stay active');
  });
  await step('push rules', async () => {
    await pushes('flow:\n  - {resource: payments, limit: 100/1s}\n', 'Pushed the rules to shop');
    await page.goto('/flow?app=shop');
    await page.locator('summary').click();
    if (!(await page.locator('#rules').inputValue()).includes('100/1s')) complain(where, 'the pushed rules are not shown');
  });
  await context.close();
}

await new Promise((done) => setTimeout(done, Number(process.env.TRAFFIC_MS ?? 12_000)));
for (const [path, name] of [
  ['/', 'overview'],
  ['/limit?name=logins', 'limit'],
  ['/limit?name=logins&key=mallory%40example.com', 'key'],
  ['/rules', 'rules'],
  ['/limit?name=nobody', 'missing'],
  ['/flow', 'programs'],
  ['/flow?app=shop', 'flow'],
]) {
  await step(`look at ${path}`, () => look(path, name));
}
// Of another server, which has a store.
if (process.env.TIDEGATE_SHARED) {
  await step('look at /servers', async () => {
    const shared = process.env.TIDEGATE_SHARED;
    let seen = [];
    for (let tries = 0; tries < 600 && seen.length < 2; tries += 1) {
      const answer = await fetch(`${shared}/v1/servers`);
      seen = answer.ok ? (await answer.json()).servers.map((server) => server.name) : [];
      await new Promise((done) => setTimeout(done, 100));
    }
    if (seen.join() !== 'one,two') complain('/servers', `not both servers are seen: ${seen.join()}`);
    await look(`${shared}/servers`, 'servers');
  });
}
if (process.env.TIDEGATE_REPORT) await step('look at the report', () => look(process.env.TIDEGATE_REPORT, 'report'));
await step('the overview', overview);
await step('use a key', use);
await step('look at /audit', () => look('/audit', 'audit'));
await step('edit the rules', edit);
await step('push rules', push);
going = false;
await busy;
// The actions again, over TLS. The browser then speaks HTTP/2, which has no Host field.
if (process.env.TIDEGATE_TLS) {
  [admin, http] = [process.env.TIDEGATE_TLS, process.env.TIDEGATE_TLS_HTTP];
  const again = Promise.all([traffic(), program()]);
  await new Promise((done) => setTimeout(done, 4_000));
  await step('it is HTTP/2', async () => {
    const { context, page, where } = await open('/', 1440, 'light');
    const protocol = await page.evaluate(() => performance.getEntriesByType('navigation')[0].nextHopProtocol);
    if (protocol !== 'h2') complain(where, `the browser speaks ${protocol}`);
    await context.close();
  });
  for (const [name, run] of [['use a key', use], ['edit the rules', edit], ['push rules', push]]) {
    await step(`${name} over TLS`, run);
  }
  going = false;
  await again;
}
await browser.close();
// The console calls each refusal an error, also those that the check provokes: a missing page, a wrong quota, wrong rules.
const meant = /nobody.*status of 404|mallory.*status of 400|app=shop.*status of 422/;
for (const problem of problems.filter((problem) => !meant.test(problem))) {
  console.error(problem);
  process.exitCode = 1;
}
if (!process.exitCode) console.log(`the pages are as they should be, the largest with ${largest} bytes; screenshots are in ${directory}`);
