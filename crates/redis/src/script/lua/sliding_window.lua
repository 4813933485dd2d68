-- value: start of the newest slot (7 bytes), the sum of the counts, the slots' counts, newest first
-- numbers: limit, slot, span, bytes of a count
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  p.lasts = p[2] * p[3]
  p.count = '<I' .. p[4]
  p.head = '<I7I' .. p[4] .. 'I' .. p[4]
  p.empty = string.rep('\0', p[4] * (p[3] - 1))
  return 7 + (p[3] + 1) * p[4]
end
local function decide(p, v, cost)
  if cost == 0 or cost > p[1] then return end
  local slot, span, bytes = p[2], p[3], p[4]
  local start, sum, newest, turned = 0, 0, 0, span
  if v then
    start, sum, newest = read(p.head, v)
    turned = now - start
    -- Within the newest slot, or before it if the clock went back.
    turned = turned < slot and 0 or math.floor(turned / slot)
  end
  if turned == 0 then
    if sum + cost > p[1] then return end
    return pack(p.head, start, sum + cost, newest + cost), start, start
  end
  if turned >= span then
    local first = now - now % slot
    return pack(p.head, first, cost, cost) .. p.empty, first, start
  end
  for at = span - turned + 1, span do sum = sum - read(p.count, v, 8 + bytes * at) end
  if sum + cost > p[1] then return end
  local newer = start + turned * slot
  local between = string.rep('\0', bytes * (turned - 1))
  local kept = string.sub(v, 8 + bytes, 7 + bytes * (1 + span - turned))
  return pack(p.head, newer, sum + cost, cost) .. between .. kept, newer, start
end
-- Adopts the value of a limit with another count size. If the new limit is lower than the sum, the oldest units are forgotten:
-- they would leave before the next request fits in any case.
local function adopt(p, v)
  local span, bytes = p[3], (#v - 7) / (p[3] + 1)
  if bytes ~= 1 and bytes ~= 2 and bytes ~= 4 then return end
  local counts, sum = {}, 0
  for at = 1, span do
    local count = math.min(read('<I' .. bytes, v, 8 + bytes * at), p[1] - sum)
    counts[at], sum = pack(p.count, count), sum + count
  end
  return string.sub(v, 1, 7) .. pack(p.count, sum) .. table.concat(counts)
end
return prepare, decide, adopt
