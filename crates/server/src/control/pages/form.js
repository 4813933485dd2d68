// The form of one limit next to the text of the rules. The text is what counts: the form reads it, and changes single values in it.

import { limitsOf, withLimit, withValue } from '/assets/limits.js';

const text = document.getElementById('text');
const form = document.getElementById('limit');
const which = document.getElementById('which');
const fields = [...form.querySelectorAll('[data-key]')];
const algorithm = form.querySelector('[data-key="algorithm"]');

const wrongOf = (field) => document.getElementById(field.getAttribute('aria-describedby').split(' ')[0]);
// The place of the limit whose mistakes are shown.
let shown = -1;
const nameOf = (limit, at) => limit.fields?.get('name')?.value || `number ${at + 1}`;

// The limits in the text as it is now; none if it cannot be followed, as with ten thousand brackets.
function limitsNow() {
  try {
    return limitsOf(text.value);
  } catch {
    return [];
  }
}

// The limit that the form shows.
const chosen = () => limitsNow()[which.selectedIndex];

function fill() {
  const limits = limitsNow();
  const before = Math.min(Math.max(which.selectedIndex, 0), limits.length - 1);
  which.replaceChildren(...limits.map((limit, at) => new Option(nameOf(limit, at))));
  which.selectedIndex = before;
  which.disabled = limits.length === 0;
  if (before !== shown) clear();
  const limit = limits[before];
  document.getElementById('unreadable').hidden = !limit || limit.fields !== null;
  for (const field of fields) {
    const there = limit?.fields?.get(field.dataset.key);
    const value = there?.value ?? '';
    const isLong = there?.value === null;
    field.disabled = !limit?.fields || isLong;
    // An alias, or a mistake.
    if (field.options && ![...field.options].some((option) => option.value === value)) field.add(new Option(value, value));
    // What is being typed stays.
    if (field !== document.activeElement || isLong) field.value = isLong && !field.options ? 'see the text' : value;
  }
  const kind = algorithm.value || algorithm.options[0].dataset.default;
  for (const field of fields.filter((one) => one.dataset.of)) {
    field.closest('.field').hidden = !field.dataset.of.split(' ').includes(kind) && field.value === '';
  }
}

// Puts a new text in the place of the old one, as if it had been typed.
function put(changed) {
  if (changed === text.value) return;
  const { scrollTop } = text;
  text.value = changed;
  text.scrollTop = scrollTop;
  text.dispatchEvent(new Event('input'));
}

function clear() {
  shown = which.selectedIndex;
  fields.forEach((field) => {
    field.removeAttribute('aria-invalid');
    wrongOf(field).textContent = '';
  });
}

// Shows each mistake of this limit at the field that it is about.
export function showAt(mistakes) {
  clear();
  const limit = chosen();
  if (!limit?.fields) return;
  const lineOf = (at) => text.value.slice(0, at).split('\n').length;
  const [first, last] = [lineOf(limit.start), lineOf(limit.end)];
  for (const { line, what, mend } of mistakes.filter((one) => one.line >= first && one.line <= last)) {
    const on = fields.filter((field) => limit.fields.has(field.dataset.key) && lineOf(limit.fields.get(field.dataset.key).start) === line);
    const named = (field) => what.includes(`\`${field.dataset.key}\``) || new RegExp(`\\b(no|the) ${field.dataset.key}\\b`).test(what);
    const field = fields.find(named) ?? (on.length === 1 ? on[0] : fields.find((one) => one.dataset.key === 'limit'));
    field.setAttribute('aria-invalid', 'true');
    wrongOf(field).textContent += `${mend ? `${what}; ${mend}` : what}. `;
  }
}

for (const field of fields) {
  field.addEventListener('change', () => {
    const limit = chosen();
    if (limit?.fields) put(withValue(text.value, limit, field.dataset.key, field.value.trim()));
  });
}
which.addEventListener('change', () => text.dispatchEvent(new Event('input')));
document.getElementById('add').addEventListener('click', () => {
  const names = new Set(limitsNow().map(nameOf));
  let name = 'new';
  for (let at = 2; names.has(name); at += 1) name = `new-${at}`;
  put(withLimit(text.value, name));
  which.selectedIndex = which.options.length - 1;
  fill();
  fields[0].focus();
});
// Enter in a field takes its value over, and saves nothing.
form.addEventListener('submit', (event) => event.preventDefault());
text.addEventListener('input', fill);
fill();
