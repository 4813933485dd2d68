// One question before an action that changes something, and its terms: for how long, and why.

const dialog = document.getElementById('ask');
const question = document.getElementById('question');
const inputs = [...dialog.querySelectorAll('input')];
let answer = () => {};

// `submit` comes before the next question can be opened. `close` comes later, perhaps when the next question is already open.
dialog.querySelector('form').addEventListener('submit', (event) => answer(event.submitter?.value === 'yes'));
dialog.addEventListener('close', () => { if (!dialog.open) answer(false); });
// Enter in a field leads to the buttons. It answers nothing.
inputs.forEach((input) => input.addEventListener('keydown', (event) => {
  if (event.key !== 'Enter') return;
  event.preventDefault();
  dialog.querySelector('button.danger').focus();
}));

// Resolves to the terms, such as {for: '1h', note: 'scrapes'}, if the operator pressed Yes, and else to null. Escape and a later
// question mean no. `terms` names the fields that are shown, and `span` is the duration that is there at first.
export function confirm(text, terms = '', span = '') {
  answer(false);
  question.textContent = text;
  const asked = terms.split(' ');
  for (const input of inputs) {
    input.value = input.name === 'for' ? span : '';
    input.closest('.field').hidden = !asked.includes(input.name);
  }
  return new Promise((done) => {
    answer = (isYes) => {
      const given = inputs.filter((input) => asked.includes(input.name) && input.value.trim() !== '');
      done(isYes ? Object.fromEntries(given.map((input) => [input.name, input.value.trim()])) : null);
    };
    dialog.showModal();
  });
}

export const isOpen = () => dialog.open;
