-- Spans are microseconds and a fraction in 1/scale of one, as in the value.
local function debt_of(p, v)
  local tat, part = 0, 0
  if v then
    if p[3] == 0 then tat = struct.unpack('<I7', v) else tat, part = struct.unpack(p.head, v) end
    if part >= p[6] then tat, part = tat + 1, 0 end
  end
  if tat < now then return 0, 0 end
  return tat - now, part
end
local function less(a, a_part, b, b_part) return a < b or a == b and a_part < b_part end
local function minus(p, a, a_part, b, b_part)
  if less(a, a_part, b, b_part) then return 0, 0 end
  if a_part < b_part then return a - b - 1, a_part + p[6] - b_part end
  return a - b, a_part - b_part
end
local function plus(p, a, a_part, b, b_part)
  local part = a_part + b_part
  if part >= p[6] then return a + b + 1, part - p[6] end
  return a + b, part
end
-- A token bucket's rule stays, with the reason why it owes more than its capacity, unless that is a charge now: see
-- token_bucket.lua.
local function write(p, v, debt, part, is_charged)
  local head = p[3] == 0 and struct.pack('<I7', now + debt) or struct.pack(p.head, now + debt, part)
  if not p.rule then return head end
  local rule = string.sub(v or p.rule, -#p.rule)
  if is_charged then
    local last = string.byte(rule, 7)
    local is_shut = last >= 16 and last < 48
    rule = string.sub(rule, 1, 6) .. string.char(last % 16 + (is_shut and 32 or 0)) .. string.sub(rule, 8)
  end
  return head .. rule
end
local function room(p, v)
  local debt, part = debt_of(p, v)
  local free, free_part = minus(p, p[4], p[5], debt, part)
  -- A quotient of doubles may be off by one, but spans are exact.
  local units = math.floor((free + free_part / p[6]) / (p[2] + p[3] / p[6]))
  local function fits(count)
    local span, span_part = span_of(p, count)
    return not less(free, free_part, span, span_part)
  end
  while units > 0 and not fits(units) do units = units - 1 end
  while units < p[1] and fits(units + 1) do units = units + 1 end
  return math.min(units, p[1])
end
local function alike() return math.huge end
local function give_back(p, v, taken, units)
  local debt, part = debt_of(p, v)
  local span, span_part = span_of(p, units)
  local credit, credit_part = minus(p, span, span_part, math.max(now - taken, 0), 0)
  if credit == 0 and credit_part == 0 or debt == 0 and part == 0 then return v end
  return write(p, v, minus(p, debt, part, credit, credit_part))
end
-- p[7]: the maximum debt in units; p[8] and p[9]: its span. For the leaky bucket, too.
local function charge(p, v, spent)
  local debt, part = debt_of(p, v)
  local span, span_part = span_of(p, math.min(spent, p[7]))
  local after, after_part = plus(p, debt, part, span, span_part)
  if less(p[8], p[9], after, after_part) then
    after, after_part = p[8], p[9]
    if less(after, after_part, debt, part) then after, after_part = debt, part end
  end
  return write(p, v, after, after_part, spent > 0)
end
return room, alike, give_back, charge
