// Inserts the server's updates each second, and posts an action after a question.

import { confirm, isOpen } from '/assets/ask.js';

const live = document.getElementById('live');
const status = document.getElementById('status');
const connection = document.getElementById('connection');
const pause = document.getElementById('pause');

let paused = false;
let held = false;

// Replaces the changing part and keeps the focus. Nothing is replaced while a question is open or during a click.
function show(html) {
  if (paused || held || isOpen()) return;
  const focused = live.contains(document.activeElement) ? place(document.activeElement) : null;
  live.innerHTML = html;
  if (focused !== null) {
    const found = live.querySelectorAll('a, button, summary')[focused];
    if (found) found.focus({ preventScroll: true });
  }
}

function place(element) {
  return [...live.querySelectorAll('a, button, summary')].indexOf(element);
}

if (live.dataset.live) {
  const source = new EventSource(live.dataset.live);
  source.onmessage = (event) => {
    connection.textContent = '';
    show(event.data);
  };
  source.onerror = () => {
    connection.textContent = 'The server does not answer. These are the last numbers.';
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
  status.textContent = await post(new URL(form.action).pathname, fields, form.dataset.done);
});

// Posts an action. Resolves to `done`, or to the reason why nothing was done.
async function post(path, fields, done) {
  try {
    const body = Object.keys(fields).length ? JSON.stringify(fields) : '';
    const response = await fetch(path, { method: 'POST', body });
    const answer = await response.json();
    if (!response.ok) return answer.detail;
    if (answer.unblocked === false) return `${fields.key} was not blocked in ${fields.limit}`;
    if (answer.ended === false) return `${fields.key} had no override in ${fields.limit}`;
    return done;
  } catch {
    return 'The server does not answer.';
  }
}
