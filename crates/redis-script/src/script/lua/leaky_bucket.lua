-- value: as the token bucket's               numbers: limit, interval and its part, longest wait and its part, scale
local pack, read = struct.pack, struct.unpack
local function decide(p, v, cost)
  if cost > p[1] then return end
  local tat, part = 0, 0
  if v then
    if p[3] == 0 then tat = read('<I7', v) else tat, part = read(p.head, v) end
    if part >= p[6] then tat, part = tat + 1, 0 end
  end
  local debt = tat - now
  if debt < 0 then debt, part = 0, 0 end
  if debt > p[4] or debt == p[4] and part > p[5] then return end
  if p[3] == 0 then
    debt = debt + cost * p[2]
    return pack('<I7', now + debt), now + debt, tat
  end
  local more, more_part = span_of(p, cost)
  debt, part = debt + more, part + more_part
  if part >= p[6] then debt, part = debt + 1, part - p[6] end
  return pack(p.head, now + debt, part), now + debt, tat
end
local function prepare(p)
  local size = prepare_bucket(p)
  -- The last request to start owes its own span, too.
  if went_back then p.ahead = p.ahead + span_of(p, p[1]) + 1 end
  return size
end
return prepare, decide, adopt_bucket
