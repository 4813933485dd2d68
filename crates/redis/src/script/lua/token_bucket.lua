-- value: TAT in microseconds (7 bytes); if the interval is not a whole number of them, the TAT's fraction in 1/scale (5 bytes, or
-- 6); and the rule that wrote it, so that another rule finds the units that are owed: whole interval (7), burst (4), and with
-- a fraction scale/1000 (4) and the interval's fraction in 1/scale (5, or 6)
-- numbers: burst, interval and its fraction, capacity and its fraction, scale (and where they end); and for a cost that only the full bucket of a
-- leased limit can hold: how long units may be used after they were taken, and the burst that the leased limit has
local pack, read = struct.pack, struct.unpack
-- Added to the interval in a value: the bucket owes more than the value says, and is shut until this much is repaid.
local SHUT = 4503599627370496
-- The longest debt, in microseconds.
local LONGEST = 3458764513820540
-- The latest value and its text: keys without debt have the same value after the same cost.
local packed, text, fresh
local function prepare(p)
  local size, burst = prepare_bucket(p), p[1]
  if #p == 9 then p.held, burst = p[7], p[8] end
  if p[3] == 0 then
    p.rule = pack('<I7I4', p[2], burst)
  else
    p.rule = pack('<I7I4I4I' .. size - 7, p[2], burst, p[6] / 1000, p[3])
  end
  return size + #p.rule
end
-- The result may be the beginning of a value whose rest stays: the rule that wrote it.
local function decide(p, v, cost)
  if cost > p[1] then return end
  if p[3] == 0 then
    local tat = v and read('<I7', v) or 0
    local debt = (tat > now and tat - now or 0) + cost * p[2]
    if debt > p[4] then return end
    if p.held and tat + p.held > now and tat + p.held - now + cost * p[2] > p[4] then return end
    local after = now + debt
    if after ~= packed then packed, text, fresh = after, pack('<I7', after), nil end
    if v then return text, after, tat end
    fresh = fresh or text .. p.rule
    return fresh, after, tat
  end
  local tat, part = 0, 0
  if v then tat, part = read(p.head, v) end
  if part >= p[6] then tat, part = tat + 1, 0 end
  local ahead, debt = p.held and tat + p.held - now, tat - now
  local more, more_part = span_of(p, cost)
  if ahead and ahead >= 0 then
    local all, all_part = ahead + more, part + more_part
    if all_part >= p[6] then all, all_part = all + 1, all_part - p[6] end
    if all > p[4] or all == p[4] and all_part > p[5] then return end
  end
  if debt < 0 then debt, part = 0, 0 end
  debt, part = debt + more, part + more_part
  if part >= p[6] then debt, part = debt + 1, part - p[6] end
  if debt > p[4] or debt == p[4] and part > p[5] then return end
  local after = pack(p.head, now + debt, part)
  return v and after or after .. p.rule, now + debt, tat
end
-- The rule in the value of a bucket that is shut.
local function shut_rule(p) return pack('<I7', p[2] + SHUT) .. string.sub(p.rule, 8) end
local function more(a, a_part, b, b_part) return a > b or a == b and a_part > b_part end
local function twice(p, span, part)
  span, part = 2 * span, 2 * part
  if part >= p[6] then return span + 1, part - p[6] end
  return span, part
end
-- The whole units in a debt, and the rest in units.
local function units_of(p, debt, part)
  local interval = p[2] + p[3] / p[6]
  -- A quotient of doubles may be off, but spans are exact.
  local units = math.min(math.floor((debt + part / p[6]) / interval), 9007199254740992)
  local span, span_part = span_of(p, units)
  while units > 0 and more(span, span_part, debt, part) do
    units = units - 1
    span, span_part = span_of(p, units)
  end
  while units < 9007199254740992 do
    local next, next_part = span_of(p, units + 1)
    if more(next, next_part, debt, part) then break end
    units, span, span_part = units + 1, next, next_part
  end
  return units, math.max(debt - span + (part - span_part) / p[6], 0) / interval
end
-- Adopts the value that another rule wrote: the same number of units at the new rate, as `TokenBucket::carry` in
-- tidegate-core does. Also returns whether the value has changed with the rule. A former version wrote no rule: its value is
-- taken for one of this rule.
local function adopt(p, v)
  local bytes, tat, part, whole, burst, parts, rest = 0, 0, 0, 0, 0, 1, 0
  if #v == 18 then
    tat, whole, burst = read('<I7I7I4', v)
  elseif #v == 32 or #v == 34 then
    bytes = (#v - 22) / 2
    tat, part, whole, burst, parts, rest = read('<I7I' .. bytes .. 'I7I4I4I' .. bytes, v)
  else
    v = adopt_bucket(p, v)
    return v and v .. p.rule
  end
  local from = {burst, whole % SHUT, rest, 0, 0, 1000 * parts}
  local debt = tat - now
  if debt < 0 then debt, part = 0, 0 end
  local full, full_part = span_of(from, burst)
  local capacity, capacity_part = span_of(p, #p == 9 and p[8] or p[1])
  -- Admits nothing for this long, and then counts as just used up.
  local function shut(span)
    -- At most as long as an empty bucket takes to fill.
    local filling = p[1] == 0 and p[2] or capacity
    local after = capacity + math.min(span, filling) + (capacity_part > 0 and 1 or 0)
    local text = pack('<I7', now + math.min(after, LONGEST))
    if p[3] > 0 then text = text .. string.rep('\0', #p.rule - 15) end
    return text .. shut_rule(p), true
  end
  if whole >= SHUT and more(debt, part, full, full_part) then
    if string.sub(v, -#p.rule) == shut_rule(p) then return v end
    return shut(debt - full)
  end
  local new, new_part = debt, part
  if from[2] ~= p[2] or rest ~= p[3] or rest > 0 and from[6] ~= p[6] then
    local units, left = units_of(from, debt, part)
    new, new_part = span_of(p, units)
    left = left * (p[2] + p[3] / p[6])
    new, new_part = new + math.floor(left), new_part + math.ceil(left % 1 * p[6])
    while new_part >= p[6] do new, new_part = new + 1, new_part - p[6] end
    if new >= LONGEST then new, new_part = LONGEST, 0 end
  end
  -- Only charges make a bucket owe more than twice its capacity. They are kept in full.
  local charged = more(debt, part, twice(from, full, full_part))
  if not charged and more(new, new_part, twice(p, capacity, capacity_part)) then return shut(capacity) end
  if p[3] == 0 then return pack('<I7', now + new + (new_part > 0 and 1 or 0)) .. p.rule, true end
  return pack(p.head, now + new, new_part) .. p.rule, true
end
return prepare, decide, adopt
