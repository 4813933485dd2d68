// Inserts the server's updates each second, and asks before a key is blocked.

const live = document.getElementById('live');
const status = document.getElementById('status');
const ask = document.getElementById('ask');
const pause = document.getElementById('pause');

let paused = false;
let held = false;

// Replaces the changing part and keeps the focus. Nothing is replaced while a question is open or during a click.
function show(html) {
  if (paused || held || ask.open) return;
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
    if (status.dataset.lost) {
      status.textContent = '';
      delete status.dataset.lost;
    }
    show(event.data);
  };
  source.onerror = () => {
    status.textContent = 'The server does not answer. These are the last numbers.';
    status.dataset.lost = 'yes';
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
  document.getElementById('question').textContent = form.dataset.question;
  ask.returnValue = 'no';
  ask.showModal();
  await new Promise((done) => ask.addEventListener('close', done, { once: true }));
  if (ask.returnValue !== 'yes') return;
  status.textContent = await post(new URL(form.action).pathname, fields);
});

async function post(path, fields) {
  try {
    const body = Object.keys(fields).length ? JSON.stringify(fields) : '';
    const response = await fetch(path, { method: 'POST', body });
    const answer = await response.json();
    if (!response.ok) return answer.detail;
    if (answer.unblocked === false) return 'It was not blocked.';
    if (answer.ended === false) return 'It had no own quota.';
    return 'Done.';
  } catch {
    return 'The server does not answer.';
  }
}
