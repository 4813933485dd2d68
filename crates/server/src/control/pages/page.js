// Inserts the server's updates each second, and posts an action after a question.

import { confirm, isOpen } from '/assets/ask.js';

const live = document.getElementById('live');
const status = document.getElementById('status');
const connection = document.getElementById('connection');
const pause = document.getElementById('pause');

let paused = false;
let held = false;

// Replaces the changing part and keeps the focus and what was chosen. Nothing is replaced while a question or a list of choices is open,
// or during a click.
function show(html) {
  const active = live.contains(document.activeElement) ? document.activeElement : null;
  if (paused || held || isOpen() || active?.tagName === 'SELECT') return;
  const focused = active && place(active);
  const isChanged = (choice) => !choice.options[choice.selectedIndex].defaultSelected;
  const chosen = [...live.querySelectorAll('select')].filter(isChanged).map((choice) => [place(choice), choice.value]);
  live.innerHTML = html;
  if (focused) found(focused)?.focus({ preventScroll: true });
  for (const [where, value] of chosen) {
    const choice = found(where);
    if (choice) choice.value = value;
  }
}

const CONTROLS = 'a, button, select, summary';

// Where a control is: its row, because rows move, and its place in that.
function place(element) {
  const row = element.closest('[data-row]');
  return { row: row?.dataset.row, at: [...(row ?? live).querySelectorAll(CONTROLS)].indexOf(element) };
}

function found({ row, at }) {
  const within = row === undefined ? live : live.querySelector(`[data-row="${CSS.escape(row)}"]`);
  return within?.querySelectorAll(CONTROLS)[at];
}

if (live.dataset.live) {
  const source = new EventSource(live.dataset.live);
  source.onmessage = (event) => {
    connection.textContent = '';
    show(event.data);
  };
  source.onerror = () => {
    connection.textContent = source.readyState === EventSource.CLOSED
      ? 'Too many pages get updates. These are the numbers of the start; reload later.'
      : 'The server does not answer. These are the last numbers.';
  };
  pause.addEventListener('click', () => {
    paused = !paused;
    pause.setAttribute('aria-pressed', String(paused));
  });
}

for (const [name, down] of [['pointerdown', true], ['pointerup', false], ['pointercancel', false]]) {
  document.addEventListener(name, () => { held = down; });
}

document.addEventListener('submit', async (event) => {
  const form = event.target;
  if (!form.dataset.question) return;
  event.preventDefault();
  const fields = Object.fromEntries(new FormData(form));
  if (fields.cost) fields.cost = Number(fields.cost);
  if (fields.end) fields.end = true;
  if (fields.for === '') delete fields.for;
  if (!await confirm(form.dataset.question)) return;
  status.textContent = '';
  status.textContent = await post(new URL(form.action).pathname, fields, form);
});

// Posts an action. Resolves to the form's words for what is done, or to the reason why nothing was done.
async function post(path, fields, form) {
  try {
    const body = Object.keys(fields).length ? JSON.stringify(fields) : '';
    const response = await fetch(path, { method: 'POST', body });
    const answer = await response.json();
    if (!response.ok) return answer.detail;
    if (answer.unblocked === false) return `${fields.key} was not blocked in ${fields.limit}`;
    if (answer.ended === false) return `${fields.key} had no override in ${fields.limit}`;
    // The next change is made from what was saved now.
    if (fields.version !== undefined) form.elements.version.value = answer.version;
    return form.dataset.done;
  } catch {
    return 'The server does not answer.';
  }
}
