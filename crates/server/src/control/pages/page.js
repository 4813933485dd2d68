// Inserts the server's updates each second, and posts an action after a question.

import { confirm, isOpen } from '/assets/ask.js';

const live = document.getElementById('live');
const state = document.getElementById('state');
const status = document.getElementById('status');
const connection = document.getElementById('connection');
const pause = document.getElementById('pause');

let paused = false;
let held = false;
// The page as the server last sent it, cut where a tag begins.
let pieces = [];

const cut = (html) => html.split(/(?=<)/);

// The page after an event: two numbers stand for pieces that are there, and a text for new ones.
function changed(steps) {
  const next = [];
  for (let at = 0; at < steps.length; at += 1) {
    if (typeof steps[at] === 'string') {
      next.push(...cut(steps[at]));
    } else {
      next.push(...pieces.slice(steps[at], steps[at] + steps[at + 1]));
      at += 1;
    }
  }
  return next;
}

const isChanged = (field) => (field.options ? !field.options[field.selectedIndex].defaultSelected : field.value !== field.defaultValue);

// Replaces the changing part and keeps the focus and what was written. Nothing is replaced while a question is open, while a field is
// written in, or during a click.
function show(html) {
  const active = live.contains(document.activeElement) ? document.activeElement : null;
  if (paused || held || isOpen() || ['SELECT', 'INPUT'].includes(active?.tagName)) return;
  const focused = active && place(active);
  const kept = [...live.querySelectorAll('select, input:not([type=hidden])')].filter(isChanged).map((field) => [place(field), field.value]);
  const made = document.createElement('template');
  made.innerHTML = html;
  const strip = made.content.firstElementChild;
  // The focus stays in what does not change.
  if (strip.outerHTML === state.innerHTML) strip.remove();
  else state.replaceChildren(strip);
  live.replaceChildren(made.content);
  if (focused) found(focused)?.focus({ preventScroll: true });
  for (const [where, value] of kept) {
    const field = found(where);
    if (field) field.value = value;
  }
}

const CONTROLS = 'a, button, select, summary, input:not([type=hidden])';

// Where a control is: its name, or its row, because rows move, and its place in that.
function place(element) {
  if (element.id) return { id: element.id };
  const row = element.closest('[data-row]');
  return { row: row?.dataset.row, at: [...(row ?? live).querySelectorAll(CONTROLS)].indexOf(element) };
}

function found({ id, row, at }) {
  if (id) return document.getElementById(id);
  const within = row === undefined ? live : live.querySelector(`[data-row="${CSS.escape(row)}"]`);
  return within?.querySelectorAll(CONTROLS)[at];
}

const source = new EventSource(live.dataset.live);
source.onmessage = (event) => {
  connection.textContent = '';
  pieces = changed(JSON.parse(event.data));
  show(pieces.join(''));
};
source.onerror = () => {
  connection.textContent = source.readyState === EventSource.CLOSED
    ? 'Too many pages get updates. These are the numbers of the start; reload later.'
    : 'The server does not answer. These are the last numbers.';
};
pause?.addEventListener('click', () => {
  paused = !paused;
  pause.setAttribute('aria-pressed', String(paused));
});

for (const [name, down] of [['pointerdown', true], ['pointerup', false], ['pointercancel', false]]) {
  document.addEventListener(name, () => { held = down; });
}

document.addEventListener('submit', async (event) => {
  const form = event.target;
  if (!form.dataset.question) return;
  event.preventDefault();
  const terms = await confirm(form.dataset.question, form.dataset.terms, form.dataset.span);
  if (!terms) return;
  const fields = { ...Object.fromEntries(new FormData(form)), ...terms };
  if (fields.cost) fields.cost = Number(fields.cost);
  if (fields.end) fields.end = true;
  status.textContent = '';
  const { words, isDone } = await post(new URL(form.action).pathname, fields, form);
  status.textContent = words;
  if (!isDone) return;
  const row = form.closest('tr');
  // A row of a page that stays as it is.
  const mark = (done) => { if (row && !live.contains(row)) row.toggleAttribute('data-done', done); };
  mark(true);
  if (form.dataset.undo) status.append(' ', undoButton(JSON.parse(form.dataset.undo), mark));
});

// A button that takes an action back.
function undoButton(undo, mark) {
  const button = document.createElement('button');
  button.type = 'button';
  button.textContent = 'Undo';
  button.addEventListener('click', async () => {
    const { words, isDone } = await post(undo.path, undo.fields);
    status.textContent = isDone ? undo.done : words;
    if (isDone) mark(false);
  });
  return button;
}

// Posts an action. Resolves to the form's words for what is done, or to the reason why nothing was done.
async function post(path, fields, form) {
  try {
    const body = Object.keys(fields).length ? JSON.stringify(fields) : '';
    const response = await fetch(path, { method: 'POST', body });
    const answer = await response.json();
    if (!response.ok) return { words: answer.detail };
    if (answer.unblocked === false) return { words: `${fields.key} was not blocked in ${fields.limit}` };
    if (answer.ended === false) return { words: `${fields.key} had no override in ${fields.limit}` };
    // The next change is made from what was saved now.
    if (fields.version !== undefined) form.elements.version.value = answer.version;
    return { words: form?.dataset.done, isDone: true };
  } catch {
    return { words: 'The server does not answer.' };
  }
}
