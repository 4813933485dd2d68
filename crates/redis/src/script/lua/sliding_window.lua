-- value: start of the newest slot (7 bytes), the slots' counts, newest first      numbers: limit, slot, span, bytes of a count
local function prepare(p)
  p.format = '<I7' .. string.rep('I' .. p[4], p[3])
  p.one = '<I7I' .. p[4]
  p.empty = string.rep('\0', p[4] * (p[3] - 1))
  return 7 + p[3] * p[4]
end
local function decide(p, v, cost)
  if cost == 0 or cost > p[1] then return end
  local slot, span = p[2], p[3]
  local turned, state = span, nil
  if v then
    state = {struct.unpack(p.format, v)}
    turned = math.max(math.min(math.floor((now - state[1]) / slot), span), 0)
  end
  if turned == span then
    local start = now - now % slot
    return struct.pack(p.one, start, cost) .. p.empty, start + span * slot - now
  end
  local sum = cost
  for at = 2, span + 1 - turned do sum = sum + state[at] end
  if sum > p[1] then return end
  if turned > 0 then
    for at = span + 1, 2 + turned, -1 do state[at] = state[at - turned] end
    for at = 2, 1 + turned do state[at] = 0 end
    state[1] = state[1] + turned * slot
  end
  state[2] = state[2] + cost
  -- The value behind the counts is where unpacking ended; packing leaves it out.
  return struct.pack(p.format, unpack(state)), state[1] + span * slot - now
end
return prepare, decide
