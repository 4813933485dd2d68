// Opens each page of the dashboard at two widths, in both themes, and fails where the browser or axe complains.
//
//   node check.mjs ADMIN HTTP DIRECTORY     screenshots go to the directory

import { spawn } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { get } from 'node:http';
import { createRequire } from 'node:module';
import { connect } from 'node:net';
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

// The rules that the program has of itself.
const own = {
  text: 'flow:\n  - {resource: payments, limit: 200/1s}\nbreakers:\n  - {resource: payments, errors: 50, interval: 1m, open: 5s}\n',
  left_out: ['custom 1..9 in flight: the algorithm is a part of the program; the rule is left out'],
};

// A stand-in for a program that links tidegate::flow. A test of the server uses the real thing.
async function program() {
  for (let at = 0; going; at += 1) {
    const now = Math.floor(Date.now() / 1000);
    const second = (pass, block, errors, rt) => [[now - 1, pass, block, errors, pass, pass * rt, 9]];
    const resources = [
      { name: 'payments', in_flight: 4, seconds: second(120 + (at % 7) * 9, (at % 5) * 6, at % 3, 8_400), breakers: [['payments: errors', at % 6 < 4 ? 'open' : 'closed']], blocked: [['quota', 40 + at], ['breaker-open', at]], origins: [['mobile', [80, 4, 3]], ['web', [40, 2, 1]]], contexts: [['checkout', [120, 6, 4]]] },
      { name: 'GET:/orders/{id}', in_flight: 11, seconds: second(640 + (at % 11) * 20, 0, 0, 2_100), adaptive: [['vegas', 48]] },
      { name: 'search', in_flight: 2, seconds: second(35, 0, 0, 31_000) },
    ];
    await fetch(`${admin}/v1/flow/report`, { method: 'POST', body: JSON.stringify({ app: 'shop', instance: 'shop-1', now, own, resources }) });
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
  await violations(page, where);
}

// Complains about what axe finds, which is in the page already.
async function violations(page, where) {
  const found = await page.evaluate(() => window.axe.run());
  for (const violation of found.violations) {
    complain(where, `${violation.id}: ${violation.help}: ${violation.nodes.map((node) => node.html).slice(0, 3).join(' ')}`);
  }
}

// Each width has a page, which shows both themes. One more page is for axe: the pages' policy lets no script in, so axe is put in past it, in a
// world of its own.
async function look(path, name) {
  const seen = [390, 1440].map((width) => lookAt(path, name, width));
  await Promise.all([...seen, auditAll(path)]);
}

async function auditAll(path) {
  const { context, page } = await open(path, 390, 'light', true);
  await page.addScriptTag({ path: axe });
  for (const width of [390, 1440]) {
    await page.setViewportSize({ width, height: 900 });
    for (const colorScheme of ['light', 'dark']) {
      await page.emulateMedia({ colorScheme });
      await violations(page, `${path} at ${width}, ${colorScheme}`);
    }
  }
  await context.close();
}

async function lookAt(path, name, width) {
  const { context, page, where } = await open(path, width, 'light');
  const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  const bytes = await page.evaluate(() =>
    ['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind)).reduce((sum, entry) => sum + entry.decodedBodySize, 0),
  );
  const height = await page.evaluate(() => document.documentElement.scrollHeight);
  if (path.startsWith('file:') && width === 1440) {
    if (name === 'suggestion' && (await page.locator('svg.curve:visible line.limit').count()) !== 2) complain(where, 'the curve lacks the two suggestions');
    for (const picture of ['figure.time-chart', '.heat-row']) {
      const box = await page.locator(`${picture}:visible`).first().boundingBox();
      if (!box || box.y > 900) complain(where, `the report does not open with ${picture}`);
    }
  }
  if (path.startsWith('file:') && width === 390 && height > 4500) complain(where, `the report is ${height} pixels long`);
  // A report on a disk has the charts of a whole log in it.
  if (!path.startsWith('file:') && (bytes === 0 || bytes > 100 * 1024)) complain(where, `page, styles and scripts have ${bytes} bytes`);
  largest = Math.max(largest, path.startsWith('file:') ? 0 : bytes);
  for (const colorScheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme });
    if ((await overflow()) > 0) complain(`${path} at ${width}, ${colorScheme}`, `${await overflow()} pixels are beside the screen`);
    await page.screenshot({ path: `${directory}/${name}-${width}-${colorScheme}.png`, fullPage: width < 700 });
  }
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
  for (let tries = 0; tries < 300; tries += 1) {
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

// A key is blocked with the keyboard alone, after a question; then it is unblocked, which is taken back, refunded and overridden. The page
// changes by itself until Pause stops it.
async function use() {
  const path = '/limit?name=logins&key=mallory%40example.com';
  const { context, page, where } = await open(path, 1440, 'light');
  const status = async () => (await page.locator('#status').textContent()) ?? '';
  const card = async () => (await page.locator('section.card').textContent()) ?? '';
  const button = (name) => page.locator('section.card').getByRole('button', { name, exact: true });
  const key = 'mallory@example.com in logins';
  // An action whose question is answered with yes: its request is sent, and the status names it.
  const act = async (what, to, shown, terms = {}) => {
    const response = await posts(page, to, async () => {
      await button(`${what} ${key}?`).click();
      for (const [name, text] of Object.entries(terms)) await page.locator(`#ask-${name}`).fill(text);
      await yes(page);
    });
    await expect(page, where, `"${shown}" after "${what}"`, async () => (await status()).includes(shown));
    return response;
  };
  const blocked = async () => (await (await fetch(`${admin}/v1/blocks?limit=logins`)).json()).blocks.find((block) => block.key === 'mallory@example.com');
  await step('the title names the key', async () => {
    if ((await page.title()) !== `${key} – Tidegate`) complain(where, `the title is ${await page.title()}`);
    if (await button(`Unblock ${key}?`).count()) complain(where, 'a key that is not blocked can be unblocked');
  });
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
    await expect(page, where, 'the block in the status', async () => (await status()).startsWith(`Blocked ${key}`));
    const denied = await acquire('logins', 'mallory@example.com');
    const { reason, retry_after_ms: wait } = await denied.json();
    if (denied.status !== 429 || reason !== 'blocked' || !(wait > 3_000_000 && wait <= 3_600_000)) complain(where, 'the key is not blocked');
  });
  await step('the facts follow', async () => {
    await expect(page, where, 'the block in the facts', async () => /denied \(blocked\).*ends in .*by local client/.test(await card()));
    await act('Block', '/v1/block', `Blocked ${key}`, { for: '2h', note: 'tries passwords' });
    await expect(page, where, 'the note', async () => /ends in 2h, by local client: tries passwords/.test(await card()));
    const { facts } = await (await fetch(`${admin}/v1/explain?limit=logins&key=mallory%40example.com`)).json();
    const names = await page.locator('section.card dt').allTextContents();
    if (names.join() !== facts.map((fact) => fact.name).join()) complain(where, `the facts are ${names}, and not those of explain`);
    for (const name of ['rule', 'what helps']) {
      const { text } = facts.find((fact) => fact.name === name);
      if (!(await card()).includes(text)) complain(where, `the page lacks the words of explain: ${text}`);
    }
  });
  await step('the history of the key', async () => {
    // The first chart is that of the key.
    const chart = page.locator('figure.time-chart').first();
    const shown = async () => (await chart.textContent()) ?? '';
    await expect(page, where, 'the reasons, the limit and the block in the chart', async () =>
      /mallory@example.com, last 15 minutes.*denied, blocked:.*denied, above the limit:.*limit 20\/1m.*block mallory@example.com in logins.*: tries passwords/s.test(await shown()));
    for (const [what, part] of [['a line for the limit', 'line.limit'], ['the axis of rates', 'svg.rates text'], ['the axis of time', 'text.time'], ['a flag', 'text.flag'], ['blocked in its colour', 'path.blocked']]) {
      if ((await chart.locator(part).count()) === 0) complain(where, `the chart lacks ${what}`);
    }
    await page.screenshot({ path: `${directory}/key-history-${where.includes('https') ? 'tls' : 'plain'}.png` });
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
    await expect(page, where, 'that it is unblocked', async () => (await status()).startsWith(`Unblocked ${key}`));
  });
  await step('undo', async () => {
    await posts(page, '/v1/block', () => page.getByRole('button', { name: 'Undo' }).click());
    await expect(page, where, 'that it is blocked again', async () => (await status()) === `Blocked ${key} again`);
    const again = await blocked();
    if (again?.note !== 'tries passwords' || !(again.until_ms > Date.now() + 7_000_000)) complain(where, `the block is not as it was: ${JSON.stringify(again)}`);
    await expect(page, where, 'the button', async () => (await button(`Unblock ${key}?`).count()) === 1);
    await act('Unblock', '/v1/unblock', `Unblocked ${key}`, { note: 'was a test' });
    if (await blocked()) complain(where, 'it is still blocked');
  });
  await step('refund', async () => {
    await page.locator('#cost').fill('2');
    await act('Refund', '/v1/refund', `Refunded ${key}`);
  });
  await step('override', async () => {
    await page.locator('#quota').fill('500/1m');
    await act('Override the quota of', '/v1/override', `Overrode the quota of ${key}`, { for: '1h' });
    if ((await acquire('logins', 'mallory@example.com')).status !== 200) complain(where, 'the own quota is not in force');
  });
  await step('end the override', async () => {
    await page.goto(path);
    if (!/500\/1m, given .* ends in (1h|59m)/.test(await card())) complain(where, `the own quota is not shown: ${await card()}`);
    await act('End own quota of', '/v1/override', `Ended own quota of ${key}`);
  });
  await step('a mistake stays in the status until the next action', async () => {
    await page.locator('#quota').fill('much');
    const response = await act('Override the quota of', '/v1/override', '`much`');
    if (response.status() !== 400) complain(where, `a quota of "much" has the status ${response.status()}`);
    await act('Reset what was used by', '/v1/reset', 'Reset');
    if ((await status()).includes('much')) complain(where, 'the mistake is still in the status after the next action');
  });
  await step('what is written stays', async () => {
    await page.locator('#quota').fill('7/1m');
    await page.locator('#pause').focus();
    const before = await page.locator('#live').innerHTML();
    await expect(page, where, 'a change', async () => (await page.locator('#live').innerHTML()) !== before);
    if ((await page.locator('#quota').inputValue()) !== '7/1m') complain(where, 'what was written is lost');
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
  await step('a shadow limit does not look as if it denied', async () => {
    const row = page.locator('tr[data-row="limit search"]');
    await expect(page, where, 'what the shadow limit would deny', async () => (await row.textContent()).includes('would be'));
    await expect(page, where, 'that a limit denies', async () => (await page.locator('tr.hurts[data-row="limit logins"]').count()) === 1);
    if ((await page.locator('tr.shadow[data-row="limit search"]').count()) !== 1) complain(where, 'the row of a shadow limit looks as if it denied');
  });
  await step('focus stays on its row', async () => {
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
  });
  await context.close();
}

// A page of blocks and overrides: one is ended, and given back.
async function orders() {
  for (const [to, body] of [
    ['block', { limit: 'logins', key: 'eve@example.com', for: '1h', note: 'tries passwords' }],
    ['override', { limit: 'per-user', key: 'user-1', quota: '900/1m', for: '2h' }],
  ]) await fetch(`${admin}/v1/${to}`, { method: 'POST', body: JSON.stringify(body) });
  await look('/orders', 'orders');
  const { context, page, where } = await open('/orders', 390, 'light');
  await step('end a block, and undo it', async () => {
    const row = page.locator('tr', { hasText: 'eve@example.com' });
    await posts(page, '/v1/unblock', async () => {
      await row.getByRole('button').click();
      await yes(page);
    });
    await expect(page, where, 'that it is done', async () => (await row.getAttribute('data-done')) !== null);
    await posts(page, '/v1/block', () => page.getByRole('button', { name: 'Undo' }).click());
    await expect(page, where, 'that it is in force', async () => (await row.getAttribute('data-done')) === null);
    await page.goto('/audit');
    await page.getByRole('link', { name: 'eve@example.com' }).first().click();
    await expect(page, where, 'the page of the key', async () => (await page.title()).startsWith('eve@example.com in logins'));
  });
  await context.close();
}

// The store dies: each page says so, with its effect and the remedy, and offers no block of innocent keys. It returns, and all is well.
async function outage() {
  const [pid, port] = process.env.TIDEGATE_STORE.split(' ');
  const [shared, data] = [process.env.TIDEGATE_SHARED, process.env.TIDEGATE_SHARED_HTTP];
  const { context, page, where } = await open(`${shared}/`, 1440, 'light');
  const strip = async () => (await page.locator('#state').textContent()) ?? '';
  await expect(page, where, 'that the store is up', async () => (await strip()).includes('store up'));
  await fetch(`${shared}/v1/block`, { method: 'POST', body: JSON.stringify({ limit: 'search', key: 'eve' }) });
  await step('rejected rules', async () => {
    const rules = readFileSync(process.env.TIDEGATE_SHARED_RULES, 'utf8');
    writeFileSync(process.env.TIDEGATE_SHARED_RULES, rules.replace('600/1m', '600'));
    await expect(page, where, 'that the rules were rejected', async () =>
      /Warning: the rules were rejected: .*line 2.*since .*Effect: the previous rules stay active. Remedy: correct the file/.test(await strip()));
    writeFileSync(process.env.TIDEGATE_SHARED_RULES, rules);
    await expect(page, where, 'that the rules are in force', async () => (await strip()).includes('rules in force'));
  });
  process.kill(Number(pid));
  await step('the store is down', async () => {
    await expect(page, where, 'the condition', async () => /Wrong: the store is down.*since .*Effect: requests to checkout are denied.*Remedy: check the store/.test(await strip()));
    await Promise.all(Array.from({ length: 9 }, () => fetch(`${data}/v1/acquire`, { method: 'POST', body: JSON.stringify({ limit: 'checkout', key: 'alice' }) })));
    const row = page.locator('tr[data-row^="denied "]');
    await expect(page, where, 'the reason next to the key', async () => (await row.count()) === 1 && (await row.textContent()).includes('denied: store-down'));
    if (await row.getByRole('button').count()) complain(where, 'a key can be blocked that the missing store denies');
    const chart = page.locator('figure.time-chart').first();
    await expect(page, where, 'the outage and its denials in the chart', async () => (await chart.locator('rect.span.wrong').count()) === 1
      && /denied, store down: .*from [0-9:]+ the store is down/s.test((await chart.textContent()) ?? ''));
    const red = await page.locator('.condition.wrong').evaluate((element) => getComputedStyle(element).borderLeftColor.match(/\d+/g).map(Number));
    if (!(red[0] > 1.5 * red[1] && red[0] > 1.5 * red[2])) complain(where, `what is wrong has the colour ${red}`);
    for (const path of ['/', '/limit?name=checkout', '/limit?name=checkout&key=alice', '/orders', '/rules', '/flow', '/audit', '/servers']) {
      const other = await open(`${shared}${path}`, 1440, 'light');
      if (!((await other.page.locator('#state').textContent()) ?? '').includes('Wrong: the store is down')) complain(path, 'the page does not say that the store is down');
      for (const button of await other.page.locator('form[action^="/v1/"]:not([action="/v1/reload"]) button').allTextContents()) complain(path, `a button is refused without the store: ${button}`);
      await other.context.close();
    }
    for (const [path, name] of [['/', 'incident'], ['/rules', 'incident-rules'], ['/audit', 'incident-audit']]) await look(`${shared}${path}`, name);
  });
  const again = spawn('redis-server', ['--port', port, '--bind', '127.0.0.1', '--save', ''], { stdio: 'ignore' });
  await step('the store returns', async () => {
    await expect(page, where, 'that the store is up', async () => (await strip()).includes('store up') && !(await strip()).includes('Wrong'));
    // It has no persistence. The first of the two servers that sees this gives the block again, and says so.
    const two = await open(`${process.env.TIDEGATE_SHARED_TWO}/`, 1440, 'light');
    const said = async (page) => /Warning: the store had lost blocks and overrides .*1 given again, 0 lost/.test((await page.locator('#state').textContent()) ?? '');
    await expect(page, where, 'that it had lost a block', async () => (await said(page)) || (await said(two.page)));
    await two.context.close();
    await expect(page, where, 'the end of the outage in the chart', async () => /[0-9:]+ to [0-9:]+ the store is down/.test((await page.locator('figure.time-chart').first().textContent()) ?? ''));
  });
  again.kill();
  await context.close();
}

// What an open page of 300 limits costs: the bytes of its updates, as they are sent.
async function weight() {
  const [host, port] = process.env.TIDEGATE_MANY_RESP.split(':');
  const socket = connect(Number(port), host);
  socket.resume();
  const sends = setInterval(() => {
    let commands = '';
    for (let at = 0; at < 60; at += 1) {
      const limit = 1 + Math.floor(299 * Math.random() ** 2);
      commands += `ACQUIRE limit-${limit} key-${Math.floor(1000 * Math.random() ** 2)}\r\n`.repeat(1 + Math.floor(4 * Math.random()));
    }
    socket.write(commands);
  }, 50);
  await new Promise((done) => setTimeout(done, 65_000 * Number(process.env.TRAFFIC_MS ?? 12_000) / 12_000));
  const measured = (accepts) => new Promise((done) => {
    get(`${process.env.TIDEGATE_MANY}/live?q=&sort=denied&page=1`, { headers: { 'accept-encoding': accepts } }, (response) => {
      let [first, bytes] = [0, 0];
      response.on('data', (chunk) => { bytes += chunk.length; first ||= chunk.length; });
      setTimeout(() => { response.destroy(); done({ first, each: Math.round((bytes - first) / 20) }); }, 20_500);
    });
  });
  const [packed, plain] = await Promise.all([measured('gzip'), measured('identity')]);
  clearInterval(sends);
  const { context, page, where } = await open(`${process.env.TIDEGATE_MANY}/`, 1440, 'light');
  await step('forgotten keys', async () => {
    let key = 0;
    await expect(page, where, 'that exhausted keys were forgotten', async () => {
      socket.write(Array.from({ length: 200 }, () => `ACQUIRE tiny key-${(key += 1)}\r\n`).join(''));
      return /Wrong: .* forgotten because the table was full: tiny .*Effect: each of them may use its limit a second time. Remedy: raise max_keys/
        .test((await page.locator('#state').textContent()) ?? '');
    });
  });
  await context.close();
  socket.destroy();
  console.log(`300 limits: ${packed.first} bytes, then ${packed.each} a second in gzip; ${plain.first}, then ${plain.each} without`);
  if (!(packed.each > 0 && packed.each <= 4096)) complain('300 limits', `an open page gets ${packed.each} bytes a second`);
}

// A text that tries hard to mislead the form, and what one change of it must give.
const HOSTILE = `# head
limits: # all of them
  - {name: a, limit: 5/1s, overrides: {"x: }y": 9/1s, 'it''s': {limit: 3/1s}}} # why, {here}
  -   name: b   # the second
      limit: 20/1m # twenty
      # between
      burst: 7 # seven
      algorithm: token-bucket
      overrides:
        admin: {limit: 9/1m}
      deny:
      - x
      - "name: y"

  # the third
  - { name: c,
      limit: 3/1m, # three
      when_full: deny, # four
      deny: [a, "b]"] }
  -
    # the fourth
    name: d
    limit: 4/1m
flow:
  - {resource: x, limit: 1/1s}
`;
const CHANGES = [
  [0, 'limit', '9/1s', 'name: a, limit: 5/1s', 'name: a, limit: 9/1s'],
  [0, 'slots', '3', 'limit: 5/1s, overrides', 'limit: 5/1s, slots: 3, overrides'],
  [0, 'by', 'ip, path', 'limit: 5/1s, overrides', 'limit: 5/1s, by: "ip, path", overrides'],
  [1, 'limit', '30/1m', 'limit: 20/1m # twenty', 'limit: 30/1m # twenty'],
  [1, 'burst', '', 'burst: 7 # seven', '# seven'],
  [1, 'algorithm', '', '\n      algorithm: token-bucket', ''],
  [1, 'shadow', 'true', 'algorithm: token-bucket\n', 'algorithm: token-bucket\n      shadow: true\n'],
  [2, 'when_full', '', 'when_full: deny, # four', '# four'],
  [2, 'algorithm', 'sliding-log', 'limit: 3/1m, # three', 'limit: 3/1m, algorithm: sliding-log, # three'],
  [3, 'limit', '6/1m', 'limit: 4/1m', 'limit: 6/1m'],
  [3, 'name', 'e', 'name: d', 'name: e'],
];

// The form changes one value, the text around it stays, and the server reads the same rules but for that.
async function change() {
  const { context, page, where } = await open('/rules', 1440, 'light');
  await step('changes of a hostile text', async () => {
    const changed = await page.evaluate(async ([text, changes]) => {
      const { limitsOf, withLimit, withValue } = await import('/assets/limits.js');
      const all = changes.map(([at, key, value]) => withValue(text, limitsOf(text)[at], key, value));
      return [...all, withLimit(text, 'e')];
    }, [HOSTILE, CHANGES]);
    const wanted = CHANGES.map(([, , , from, to]) => HOSTILE.replace(from, to));
    wanted.push(HOSTILE.replace('limit: 4/1m\n', 'limit: 4/1m\n  - name: e\n    limit: 100/1m\n'));
    for (const [at, text] of changed.entries()) {
      if (text !== wanted[at]) complain(where, `change ${at} gives ${text}`);
      const answer = await (await fetch(`${admin}/v1/rules/check`, { method: 'POST', body: text })).json();
      // Without its algorithm, a burst is a mistake.
      const mistakes = CHANGES[at]?.[1] === 'algorithm' && CHANGES[at][2] === '' ? 1 : 0;
      if (answer.mistakes.length !== mistakes) complain(where, `change ${at}: ${JSON.stringify(answer.mistakes)}`);
    }
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
    await expect(page, where, 'the mistake', async () => (await checked()).includes('1 mistake'));
    await page.getByRole('button', { name: 'Line 3' }).click();
    const selected = await text.evaluate((area) => area.value.slice(area.selectionStart, area.selectionEnd));
    if (!selected.includes('name: logins')) complain(where, `the button leads to: ${selected}`);
    if (await page.locator('#save').isEnabled()) complain(where, 'a mistake can be saved');
  });
  const field = (key) => page.locator(`#limit-${key}`);
  const wrong = async (key) => (await page.locator(`#limit-${key}-wrong`).textContent()) ?? '';
  await step('a text that no parser follows', async () => {
    await text.fill(`limits:\n  - {name: a, limit: ${'['.repeat(50_000)}`);
    await expect(page, where, 'the mistake', async () => (await checked()).includes('1 mistake'));
    if (await field('name').isEnabled()) complain(where, 'the form follows fifty thousand brackets');
    await text.fill(before);
    await expect(page, where, 'that nothing is wrong', async () => (await checked()).includes('as in the file'));
  });
  await step('the form of a limit', async () => {
    const commented = before.replace('slots: 60}', 'slots: 60} # per minute');
    await text.fill(commented);
    await page.getByLabel('Limit', { exact: true }).selectOption('logins');
    if ((await field('limit').inputValue()) !== '20/1m' || (await field('slots').inputValue()) !== '60') complain(where, 'the form lacks the values');
    if (await field('burst').isVisible()) complain(where, 'an option of another algorithm is shown');
    // With the keyboard alone; Enter takes the value over, and saves nothing.
    await field('limit').focus();
    await page.keyboard.press('Control+A');
    await page.keyboard.type('20');
    await page.keyboard.press('Enter');
    await expect(page, where, 'the mistake at its field', async () => (await wrong('limit')).includes('100/1m'));
    if ((await field('limit').getAttribute('aria-invalid')) !== 'true' || (await wrong('name')) !== '') complain(where, 'the mistake is at another field');
    if ((await page.locator('#ask').getAttribute('open')) !== null) complain(where, 'Enter asks to save');
    await audit(page, where);
    await field('limit').fill('10/1m');
    await page.keyboard.press('Tab');
    await field('mode').selectOption('balanced');
    await field('name').fill('log-ins');
    await page.keyboard.press('Tab');
    await field('shadow').selectOption('true');
    const wanted = commented.replace('name: logins, limit: 20/1m, algorithm: sliding-window,', 'name: log-ins, limit: 10/1m, algorithm: sliding-window, shadow: true, mode: balanced,');
    await expect(page, where, 'the changed text', async () => (await text.inputValue()) === wanted);
    await expect(page, where, 'no mistakes', async () => (await checked()).includes('no mistakes') && (await wrong('limit')) === '');
    await page.getByLabel('Limit', { exact: true }).selectOption('payments');
    await field('algorithm').selectOption('token-bucket');
    await expect(page, where, 'the mistake of a changed algorithm', async () => (await wrong('limit')).includes('`limit` is'));
    await page.getByRole('button', { name: 'Add a limit' }).click();
    await expect(page, where, 'the new limit', async () => (await text.inputValue()).includes('\n  - {name: new, limit: 100/1m}'));
    if ((await wrong('limit')) !== '') complain(where, 'the new limit has the mistake of another');
    if ((await field('name').inputValue()) !== 'new') complain(where, 'the form does not show the new limit');
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (overflow > 0) complain(where, `${overflow} pixels are beside the screen with the form`);
    await page.screenshot({ path: `${directory}/rules-form-390-dark.png`, fullPage: true });
  });
  await step('try a candidate', async () => {
    await text.fill(before.replace('limit: 20/1m', 'limit: 10/1m'));
    await expect(page, where, 'the difference', async () => {
      const added = await page.locator('#diff .added').allTextContents();
      return added.length === 1 && added[0].includes('name: logins, limit: 10/1m');
    });
    await page.locator('#try').click();
    await expect(page, where, 'what it would deny', async () => (await page.locator('#tried table').count()) > 0);
    await page.screenshot({ path: `${directory}/rules-tried-390-dark.png`, fullPage: true });
    if ((await page.locator('#tried figure.time-chart:visible').count()) !== 2) complain(where, 'a try does not open with its two charts');
    const tall = await page.locator('#tried').evaluate((part) => part.scrollHeight);
    if (tall > 1_800) complain(where, `a try is ${tall} pixels long`);
    const overflow = await page.evaluate(
      () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
    );
    if (overflow > 0) complain(where, `${overflow} pixels are beside the screen after a try`);
    await audit(page, where);
    // An edit makes it outdated.
    const tried = await text.inputValue();
    const heading = () => page.locator('#tried h2').first().textContent();
    if ((await heading()) !== 'What the change would have denied') complain(where, `the try has the heading ${await heading()}`);
    await text.fill(`${tried}# later\n`);
    await expect(page, where, 'that the try is outdated', async () => (await heading()) === 'What an earlier text would have denied');
    await text.fill(tried);
  });
  await step('save', async () => {
    await posts(page, '/v1/rules/save', async () => {
      await page.locator('#save').click();
      await yes(page);
    });
    await expect(page, where, 'that it is saved', async () => (await checked()).includes('Saved and loaded'));
    const { text: now } = await (await fetch(`${admin}/v1/rules/file`)).json();
    if (!now.includes('limit: 10/1m')) complain(where, 'the file is as it was');
    await fetch(`${admin}/v1/mark`, { method: 'POST', body: JSON.stringify({ note: 'shop 1.4 deployed' }) });
    const charts = await open('/limit?name=logins', 1440, 'light');
    const marks = async () => (await charts.page.locator('figure.time-chart').first().textContent()) ?? '';
    for (const mark of ['rules loaded', 'shop 1.4 deployed']) {
      await expect(charts.page, where, `"${mark}" in the chart`, async () => (await marks()).includes(mark));
    }
    await charts.context.close();
    // The check of the edit just before does not replace the outcome.
    await page.evaluate(() => new Promise((done) => setTimeout(done, 400)));
    await page.evaluate(() => fetch('/v1/rules/check', { method: 'POST', body: '' }));
    if (!(await checked()).includes('Saved and loaded')) complain(where, `the outcome of the save is replaced by ${await checked()}`);
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
    await page.goto('/flow?app=shop');
    await page.locator('summary').click();
    const shown = await page.locator('#rules').inputValue();
    if (shown !== own.text) complain(where, `the form does not start from the rules in force: ${shown}`);
    if (!(await page.locator('details').textContent()).includes('custom 1..9')) complain(where, 'what a push would end is not shown');
    await pushes(shown.replace('200/1s', '100/1s'), 'Pushed the rules to shop');
    // The next change is made from these.
    await pushes(shown.replace('200/1s', '150/1s'), 'Pushed the rules to shop');
    const another = await open('/flow?app=shop', 1440, 'light');
    await another.page.locator('summary').click();
    const now = await another.page.locator('#rules').inputValue();
    if (now !== own.text.replace('200/1s', '150/1s')) complain(where, `the pushed rules are not shown, with the breaker: ${now}`);
    await pushes(shown, 'Pushed the rules to shop');
    // It was opened before that push.
    await posts(another.page, '/v1/flow/rules', async () => {
      await another.page.getByRole('button', { name: 'Push' }).click();
      await yes(another.page);
    });
    await expect(page, where, 'that the rules have changed', async () => (await another.page.locator('#status').textContent()).includes('load them again'));
    await another.context.close();
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
  ['/flow?app=shop&resource=payments', 'resource'],
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
if (process.env.TIDEGATE_STORE) await step('an outage of the store', outage);
if (process.env.TIDEGATE_MANY) await step('the weight of a page', weight);
if (process.env.TIDEGATE_REPORT) {
  await step('look at the report', () => look(process.env.TIDEGATE_REPORT, 'report'));
  await step('look at a suggestion', () => look(process.env.TIDEGATE_SUGGESTION, 'suggestion'));
}
await step('the overview', overview);
await step('use a key', use);
await step('look at /audit', () => look('/audit', 'audit'));
await step('blocks and overrides', orders);
await step('change a limit', change);
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
    await expect(page, where, 'when the certificate expires', async () =>
      /Warning: the certificate of --tls-cert expires in [12]d.*Remedy: replace the file/.test((await page.locator('#state').textContent()) ?? ''));
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
const meant = /nobody.*status of 404|mallory.*status of 400|app=shop.*status of (422|409)/;
for (const problem of problems.filter((problem) => !meant.test(problem))) {
  console.error(problem);
  process.exitCode = 1;
}
if (!process.exitCode) console.log(`the pages are as they should be, the largest with ${largest} bytes; screenshots are in ${directory}`);
