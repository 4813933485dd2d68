// The editor of the rules: says what is wrong as one types, shows what would change, tries that on the trace, and saves.

import { confirm } from '/assets/ask.js';
import { showAt } from '/assets/form.js';

const form = document.getElementById('rules');
const text = document.getElementById('text');
const checked = document.getElementById('checked');
const mistakes = document.getElementById('mistakes');
const diff = document.getElementById('diff');
const tried = document.getElementById('tried');
const save = document.getElementById('save');
const attempt = document.getElementById('try');

const PAUSE = 300;
let timer = 0;
let asked = 0;

// The server's answer to the text, or words about why there is none.
async function post(path, body) {
  try {
    const response = await fetch(path, { method: 'POST', body });
    return { ok: response.ok, status: response.status, answer: await response.json() };
  } catch {
    return { ok: false, status: 0, answer: { detail: 'The server does not answer.' } };
  }
}

function make(name, words, attributes = {}) {
  const element = document.createElement(name);
  element.textContent = words;
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  return element;
}

function show(list) {
  mistakes.replaceChildren(...list.map(({ line, what, mend }) => {
    const item = document.createElement('li');
    const words = mend ? `${what}; ${mend}` : what;
    if (line) {
      const button = make('button', `Line ${line}`, { type: 'button' });
      button.addEventListener('click', () => go(line));
      item.append(button, ' ');
    }
    item.append(words);
    return item;
  }));
}

// Puts the cursor at the beginning of a line, and selects it.
function go(line) {
  const lines = text.value.split('\n');
  const start = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
  text.focus();
  text.setSelectionRange(start, start + (lines[line - 1] ?? '').length);
}

function showDiff(unified) {
  const kinds = { '+': 'added', '-': 'removed', '@': 'place' };
  diff.replaceChildren(...unified.split('\n').filter((line) => line !== '').map((line) => {
    const row = make('span', `${line}\n`);
    if (kinds[line[0]]) row.className = kinds[line[0]];
    return row;
  }));
  diff.hidden = unified === '';
}

async function check() {
  asked += 1;
  const mine = asked;
  const { ok, answer } = await post('/v1/rules/check', text.value);
  // A later question is under way.
  if (mine !== asked) return;
  if (!ok) {
    checked.textContent = answer.detail;
    return;
  }
  const wrong = answer.mistakes.length;
  const same = answer.diff === '';
  checked.textContent = wrong > 0 ? `${wrong} mistake${wrong === 1 ? '' : 's'}` : `${answer.limits} limits, no mistakes${same ? ', as in the file' : ''}`;
  show(answer.mistakes);
  showAt(answer.mistakes);
  showDiff(answer.diff);
  attempt.disabled = wrong > 0;
  if (save) save.disabled = wrong > 0 || same;
}

text.addEventListener('input', () => {
  clearTimeout(timer);
  timer = setTimeout(check, PAUSE);
  // What was tried is not what stands there now.
  tried.querySelector('h2')?.replaceChildren('What an earlier text would have denied');
});

// A number for all keys with its margin.
function estimated({ about: number, margin }) {
  if (number === 0 && margin > 0) return `at most ${margin}`;
  return margin > 0 ? `${number} ± ${margin}` : String(number);
}

function table(limit) {
  const heads = ['', 'Really', 'With this change'];
  const rows = [
    ['Requests denied', limit.denied.requests, limit.would_deny.requests],
    ['Keys denied', limit.denied.keys, limit.would_deny.keys],
  ];
  if (limit.share < 1) {
    rows.push(['All keys: requests, about', estimated(limit.denied.all_requests), estimated(limit.would_deny.all_requests)]);
    rows.push(['All keys: keys, about', estimated(limit.denied.all_keys), estimated(limit.would_deny.all_keys)]);
  }
  return grid(`${limit.limit}: ${limit.requests} requests of ${limit.keys} keys`, heads, rows);
}

function grid(title, heads, rows) {
  const made = document.createElement('table');
  made.append(make('caption', title));
  const head = document.createElement('tr');
  head.append(...heads.map((words) => (words ? make('th', words, { scope: 'col' }) : make('td', ''))));
  const top = document.createElement('thead');
  top.append(head);
  const body = document.createElement('tbody');
  body.append(...rows.map(([name, ...cells]) => {
    const row = document.createElement('tr');
    row.append(make('th', name, { scope: 'row' }), ...cells.map((cell) => make('td', String(cell))));
    return row;
  }));
  made.append(top, body);
  return made;
}

const grouped = (count) => count.toLocaleString('en');

function fold(title, isOpen) {
  const section = make('details', '', { class: 'card' });
  section.append(make('summary', title));
  section.open = isOpen;
  return section;
}

// A limit that would have denied more or less: over time, and its keys.
function about(limit, charts, isOpen) {
  const section = fold(`${limit.limit}: ${grouped(limit.denied.requests)} denied, ${grouped(limit.would_deny.requests)} with this change`, isOpen);
  const both = make('div', '', { class: 'columns' });
  both.innerHTML = charts;
  const keys = fold('Numbers and keys', false);
  keys.append(table(limit));
  if (limit.most_denied.length > 0) {
    const rows = limit.most_denied.map((key) => [key.name ?? key.hash, key.requests, key.was_denied, key.would_deny]);
    keys.append(grid('Denied most', ['Key', 'Requests', 'Really', 'With this change'], rows));
  }
  section.append(both, ...limit.notes.map((note) => make('p', note)), keys);
  return section;
}

attempt.addEventListener('click', async () => {
  tried.replaceChildren(make('p', 'Replaying …'));
  const { ok, answer } = await post('/v1/what-if?charts=true', text.value);
  if (!ok) {
    tried.replaceChildren(make('p', answer.detail));
    return;
  }
  const parts = [make('h2', 'What the change would have denied')];
  if (answer.share < 1) {
    parts.push(make('p', `From ${answer.share * 100} % of the keys. Numbers for all keys are estimates, with two standard deviations.`));
  }
  const isChanged = (limit) => limit.denied.requests !== limit.would_deny.requests;
  const changed = answer.limits.filter(isChanged);
  const others = answer.limits.length - changed.length;
  if (changed.length > 0) {
    const share = (of, limit) => (limit.requests ? `${((100 * of.requests) / limit.requests).toFixed(1)} %` : '–');
    const rows = changed.map((limit) => [limit.limit, share(limit.denied, limit), share(limit.would_deny, limit)]);
    parts.push(grid('Requests denied', ['Limit', 'Really', 'With this change'], rows));
  }
  parts.push(make('p', `${others} of ${answer.limits.length} limits would have denied as many requests as they did.`));
  answer.limits.forEach((limit, at) => {
    if (isChanged(limit)) parts.push(about(limit, answer.charts[at], limit === changed[0]));
  });
  const noted = answer.limits.filter((limit) => !isChanged(limit) && limit.notes.length > 0);
  if (noted.length > 0) {
    const section = fold('Remarks on the other limits', false);
    section.append(...noted.map((limit) => make('p', `${limit.limit}: ${limit.notes.join('; ')}`)));
    parts.push(section);
  }
  tried.replaceChildren(...parts);
});

form.addEventListener('submit', async (event) => {
  event.preventDefault();
  if (!save) return;
  if (!await confirm(`Save to ${form.dataset.path}, and load it?`)) return;
  checked.textContent = 'Saving …';
  // The check of the last edit would replace the outcome. It follows below.
  clearTimeout(timer);
  const { ok, answer } = await post(`/v1/rules/save?version=${form.dataset.version}`, text.value);
  if (ok) form.dataset.version = answer.version;
  await check();
  checked.textContent = ok ? `Saved and loaded. The file as it was before: ${answer.previous}` : answer.detail;
});

check();
