// Finds the limits in the text of a rules file, and changes one value of one of them. The rest of the text, with its comments, stays.

const KEY = /([A-Za-z_]+)[ \t]*:(?=[\s,}]|$)/y;
const BLANK = /^\s*(#.*)?$/;
// The order in which new keys are written.
const ORDER = ['name', 'limit', 'algorithm'];

// The position after a quoted text, a list or a mapping that begins here.
function past(text, from) {
  const open = text[from];
  if (open === "'") {
    let at = from + 1;
    while (at < text.length && (text[at] !== "'" || text[at + 1] === "'")) at += text[at] === "'" ? 2 : 1;
    return at + 1;
  }
  if (open === '"') {
    let at = from + 1;
    while (at < text.length && text[at] !== '"') at += text[at] === '\\' ? 2 : 1;
    return at + 1;
  }
  for (let at = from + 1; at < text.length;) {
    if (']}'.includes(text[at])) return at + 1;
    if ('[{'.includes(text[at]) || ('"\''.includes(text[at]) && /[\s[{,:]/.test(text[at - 1]))) at = past(text, at);
    else if (isComment(text, at)) at = lineEnd(text, at);
    else at += 1;
  }
  return text.length;
}

const isComment = (text, at) => text[at] === '#' && (at === 0 || /\s/.test(text[at - 1]));

function lineEnd(text, from) {
  const end = text.indexOf('\n', from);
  return end < 0 ? text.length : end;
}

function unquoted(written) {
  if (written[0] === "'") return written.slice(1, -1).replaceAll("''", "'");
  if (written[0] !== '"') return written;
  try {
    return JSON.parse(written);
  } catch {
    return written.slice(1, -1);
  }
}

// The value that begins after a key's colon: where it stands, and its text, which is null for what is no single word or number.
function valueAt(text, from, isFlow) {
  let start = from;
  while (text[start] === ' ' || text[start] === '\t') start += 1;
  if (isComment(text, start) || text[start] === '\n' || start >= text.length || (isFlow && ',}'.includes(text[start]))) {
    return { start: from, end: from, value: '' };
  }
  if ('"\'[{'.includes(text[start])) {
    const end = past(text, start);
    return { start, end, value: '[{'.includes(text[start]) ? null : unquoted(text.slice(start, end)) };
  }
  let end = start;
  while (end < text.length && text[end] !== '\n' && !isComment(text, end) && !(isFlow && ',]}'.includes(text[end]))) end += 1;
  const written = text.slice(start, end).trimEnd();
  return { start, end: start + written.length, value: '|>&*!%@`'.includes(written[0]) ? null : written };
}

// The keys of `- {name: a, limit: 5/1s}`.
function flowFields(text, from) {
  const fields = new Map();
  for (let at = from + 1; at < text.length && text[at] !== '}';) {
    if (isComment(text, at)) at = lineEnd(text, at);
    else if (/[\s,]/.test(text[at])) at += 1;
    else {
      KEY.lastIndex = at;
      const key = KEY.exec(text);
      if (!key) return null;
      const field = { at, ...valueAt(text, KEY.lastIndex, true) };
      fields.set(key[1], field);
      at = field.end;
    }
  }
  return fields;
}

// The keys of a limit that has each on its own line, all in the column of the first.
function blockFields(text, from, to) {
  const fields = new Map();
  const column = from - text.lastIndexOf('\n', from - 1) - 1;
  let last = null;
  for (let at = from; at < to; at = lineEnd(text, at) + 1) {
    const start = at === from ? from : at + /^ */.exec(text.slice(at, lineEnd(text, at)))[0].length;
    const isBlank = BLANK.test(text.slice(at, lineEnd(text, at)));
    if (start - (text.lastIndexOf('\n', start - 1) + 1) === column) {
      KEY.lastIndex = start;
      const key = KEY.exec(text);
      if (key) {
        last = { at: start, ...valueAt(text, KEY.lastIndex, false) };
        fields.set(key[1], last);
        if (last.end > lineEnd(text, at)) at = last.end - 1;
      } else if (!isBlank && text[start] === '-' && last) last.value = null;
      else if (!isBlank) return null;
    } else if (!isBlank && last) {
      // The value goes on in the lines below its key.
      last.value = null;
    }
  }
  return fields;
}

// The limits in their order. `fields` is null for one in a form that only the text can change.
export function limitsOf(text) {
  const limits = [];
  const head = /^limits:[ \t]*(#.*)?$/m.exec(text);
  let indent = null;
  for (let at = head ? lineEnd(text, head.index) + 1 : text.length; at < text.length;) {
    const end = lineEnd(text, at);
    const line = text.slice(at, end);
    const [, spaces, dash] = /^( *)(-(?: +|$))?/.exec(line);
    if (!BLANK.test(line)) {
      indent ??= dash ? spaces.length : null;
      if (indent === null || spaces.length < indent || (spaces.length === indent && !dash)) break;
      if (spaces.length === indent) limits.push({ start: at, from: at + spaces.length + dash.length, indent, end });
      limits.at(-1).end = end;
    }
    at = end + 1;
  }
  for (const limit of limits) {
    while (limit.from < limit.end && (/\s/.test(text[limit.from]) || isComment(text, limit.from))) {
      limit.from = text[limit.from] === '#' ? lineEnd(text, limit.from) : limit.from + 1;
    }
    limit.isFlow = text[limit.from] === '{';
    limit.fields = limit.isFlow ? flowFields(text, limit.from) : blockFields(text, limit.from, limit.end);
  }
  return limits;
}

// A value as YAML has it: with quotes where it might be read as something else.
const written = (value) => (/^[A-Za-z0-9_.][A-Za-z0-9_.\/+%-]*$/.test(value) ? value : JSON.stringify(value));

const replaced = (text, start, end, by) => text.slice(0, start) + by + text.slice(end);

function removed(text, limit, field) {
  if (limit.isFlow) {
    const after = /^\s*,[ \t]*/.exec(text.slice(field.end));
    if (after) return replaced(text, field.at, field.end + after[0].length, '');
    const before = /,\s*$/.exec(text.slice(0, field.at));
    return replaced(text, before ? before.index : field.at, field.end, '');
  }
  const end = lineEnd(text, field.end);
  const comment = text.slice(field.end, end).trim();
  if (comment) return replaced(text, field.at, end, comment);
  const others = [...limit.fields.values()];
  const next = others[others.indexOf(field) + 1];
  // The first key stands after the dash, and the second takes its place.
  if (field.at === limit.from && next && !text.slice(end, next.at).includes('#')) return replaced(text, field.at, next.at, '');
  if (field.at === limit.from) return replaced(text, field.at, end, '');
  return replaced(text, text.lastIndexOf('\n', field.at), end, '');
}

// The text with another value of a key of this limit, or without the key if the value is empty.
export function withValue(text, limit, key, value) {
  const field = limit.fields.get(key);
  if (field && value === '') return removed(text, limit, field);
  if (field) return replaced(text, field.start, field.end, (field.start === field.end ? ' ' : '') + written(value));
  if (value === '') return text;
  const entry = `${key}: ${written(value)}`;
  const known = ORDER.includes(key) ? ORDER.slice(0, ORDER.indexOf(key)) : ORDER;
  const before = known.map((name) => limit.fields.get(name)).filter((one) => one && one.value !== null).sort((a, b) => a.end - b.end).at(-1);
  if (limit.isFlow) {
    if (before) return replaced(text, before.end, before.end, `, ${entry}`);
    return replaced(text, limit.from + 1, limit.from + 1, limit.fields.size ? `${entry}, ` : entry);
  }
  const [first] = limit.fields.values();
  const spaces = ' '.repeat(limit.from - (text.lastIndexOf('\n', limit.from - 1) + 1));
  if (!before) return replaced(text, limit.from, limit.from, first ? `${entry}\n${spaces}` : ` ${entry}`);
  const end = lineEnd(text, before.end);
  return replaced(text, end, end, `\n${spaces}${entry}`);
}

// The text with one more limit, in the form of the last one.
export function withLimit(text, name) {
  const last = limitsOf(text).at(-1);
  const head = /^limits:[ \t]*(#.*)?$/m.exec(text);
  const end = last ? last.end : head && lineEnd(text, head.index);
  // A list within brackets.
  if (!head && /^["']?limits/m.test(text)) return text;
  if (!head) return `${text}${text === '' || text.endsWith('\n') ? '' : '\n'}limits:\n  - name: ${name}\n    limit: 100/1m\n`;
  const spaces = ' '.repeat(last ? last.indent : 2);
  const entry = last?.isFlow ? `- {name: ${name}, limit: 100/1m}` : `- name: ${name}\n${spaces}  limit: 100/1m`;
  return replaced(text, end, end, `\n${spaces}${entry}`);
}
