-- value: TAT in microseconds (7 bytes); if the interval is not a whole number of them, the TAT's fraction in 1/scale (5 bytes, or
-- 6); and the rule that wrote it, so that another rule finds the units that are owed: whole interval (7), burst (4), and with
-- a fraction scale/1000 (4) and the interval's fraction in 1/scale (5, or 6)
-- numbers: burst, interval and its fraction, capacity and its fraction, scale (and where they end); and for a cost that only the full bucket of a
-- leased limit can hold: how long units may be used after they were taken, and the burst that the leased limit has; or if a cost above
-- the burst may wait for its rest: below zero, the highest one, and the burst
local pack, read = struct.pack, struct.unpack
-- The latest value and its text: keys without debt have the same value after the same cost.
local packed, text, fresh
local function prepare(p)
  local size, burst = prepare_bucket(p), p[1]
  if #p == 9 then
    if p[7] < 0 then p.waits = -p[7] else p.held = p[7] end
    burst = p[8]
    if went_back and p.waits then p.ahead = span_of(p, p.waits) + 1 end
  end
  if p[3] == 0 then
    p.rule = pack('<I7I4', p[2], burst)
  else
    p.rule = pack('<I7I4I4I' .. size - 7, p[2], burst, p[6] / 1000, p[3])
  end
  return size + #p.rule
end
-- The result may be the beginning of a value whose rest stays: the rule that wrote it.
local function decide(p, v, cost)
  if cost > p[1] and cost > (p.waits or 0) then return end
  if p[3] == 0 then
    local tat = v and read('<I7', v) or 0
    local owed = tat > now and tat - now or 0
    local debt = owed + cost * p[2]
    if debt > p[4] and (owed > 0 or not p.waits) then return end
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
  local is_full = debt == 0 and part == 0
  debt, part = debt + more, part + more_part
  if part >= p[6] then debt, part = debt + 1, part - p[6] end
  if (debt > p[4] or debt == p[4] and part > p[5]) and not (is_full and p.waits) then return end
  local after = pack(p.head, now + debt, part)
  return v and after or after .. p.rule, now + debt, tat
end
-- Adopts the value that another rule wrote: the same number of units at the new rate, as `TokenBucket::carry` in
-- tidegate-core does. Also returns whether the value has changed with the rule. A former version wrote no rule: its value is
-- taken for one of this rule.
local function adopt(p, v)
  -- In the upper half of the interval's last byte: why the bucket owes more than its capacity, as `Above` in tidegate-core. A
  -- shut bucket owes more than the value says, and is shut until this much is repaid.
  local CHARGED, SHUT, SHUT_AND_CHARGED, LOWERED = 0, 1, 2, 3
  -- The longest debt, in microseconds.
  local LONGEST = 3458764513820540
  -- The rule in the value of a bucket that owes more than its capacity.
  local function rule_of(p, above)
    return string.sub(p.rule, 1, 6) .. string.char(string.byte(p.rule, 7) + 16 * above) .. string.sub(p.rule, 8)
  end
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
  local bytes, tat, part, low, high, burst, parts, rest = 0, 0, 0, 0, 0, 0, 1, 0
  if #v == 18 then
    tat, low, high, burst = read('<I7I6I1I4', v)
  elseif #v == 32 or #v == 34 then
    bytes = (#v - 22) / 2
    tat, part, low, high, burst, parts, rest = read('<I7I' .. bytes .. 'I6I1I4I4I' .. bytes, v)
  else
    v = adopt_bucket(p, v)
    return v and v .. p.rule
  end
  local above = math.floor(high / 16)
  local from = {burst, low + high % 16 * 281474976710656, rest, 0, 0, 1000 * parts}
  local debt = tat - now
  if debt < 0 then debt, part = 0, 0 end
  local full, full_part = span_of(from, burst)
  local capacity, capacity_part = span_of(p, #p == 9 and p[8] or p[1])
  if not more(debt, part, full, full_part) then above = CHARGED end
  if string.sub(v, -#p.rule) == rule_of(p, above) then return v end
  local interval = p[2] + p[3] / p[6]
  -- The same number of units, at the new rate.
  local function at_new_rate(span, span_part)
    if from[2] == p[2] and rest == p[3] and (rest == 0 or from[6] == p[6]) then return span, span_part end
    local units, left = units_of(from, span, span_part)
    span, span_part = span_of(p, units)
    left = left * interval
    span, span_part = span + math.floor(left), span_part + math.ceil(left % 1 * p[6])
    while span_part >= p[6] do span, span_part = span + 1, span_part - p[6] end
    if span >= LONGEST then return LONGEST, 0 end
    return span, span_part
  end
  -- Admits nothing for this long, and then counts as just used up.
  local function shut(span)
    local text = pack('<I7', now + math.min(capacity + span + (capacity_part > 0 and 1 or 0), LONGEST))
    if p[3] > 0 then text = text .. string.rep('\0', #p.rule - 15) end
    return text .. rule_of(p, above), true
  end
  -- How long an empty bucket takes to fill.
  local filling = p[1] == 0 and p[2] or capacity
  if above == SHUT then return shut(math.min(debt - full, filling)) end
  if above == SHUT_AND_CHARGED then
    -- How much of the span the charges are is unknown, so all of it counts as charged.
    local span, span_part = at_new_rate(debt - full, 0)
    return shut(math.max(debt - full, span + (span_part > 0 and 1 or 0)))
  end
  local new, new_part = at_new_rate(debt, part)
  if above == LOWERED or not more(debt, part, full, full_part) then
    above = more(new, new_part, capacity, capacity_part) and LOWERED or CHARGED
    if more(new, new_part, twice(p, capacity, capacity_part)) then
      above = SHUT
      return shut(filling)
    end
  end
  if p[3] == 0 then return pack('<I7', now + new + (new_part > 0 and 1 or 0)) .. rule_of(p, above), true end
  return pack(p.head, now + new, new_part) .. rule_of(p, above), true
end
return prepare, decide, adopt
