// One question before an action that changes something.

const dialog = document.getElementById('ask');
const question = document.getElementById('question');
let answer = () => {};

// `submit` comes before the next question can be opened. `close` comes later, perhaps when the next question is already open.
dialog.querySelector('form').addEventListener('submit', (event) => answer(event.submitter?.value === 'yes'));
dialog.addEventListener('close', () => { if (!dialog.open) answer(false); });

// Resolves to whether the operator pressed Yes. Escape and a later question mean no.
export function confirm(text) {
  answer(false);
  question.textContent = text;
  return new Promise((done) => {
    answer = done;
    dialog.showModal();
  });
}

export const isOpen = () => dialog.open;
