-- value: start of the newest slot (7 bytes), the sum of the counts, the slots' counts, newest first
-- numbers: limit, slot, span, bytes of a count
-- A full count or sum (all bits set) is above the limit and stands for any number, after a charge.
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  p.lasts, p.aligned = p[2] * p[3], p[2]
  p.count = '<I' .. p[4]
  p.full = 256 ^ p[4] - 1
  -- The highest limit cannot be exceeded, so none of its counts is full.
  if p[1] == p.full then p.full = p.full + 1 end
  p.head = '<I7I' .. p[4] .. 'I' .. p[4]
  p.empty = string.rep('\0', p[4] * (p[3] - 1))
  return 7 + (p[3] + 1) * p[4]
end
local function decide(p, v, cost)
  if cost > p[1] then return end
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
  if sum < p.full then
    for at = span - turned + 1, span do sum = sum - read(p.count, v, 8 + bytes * at) end
  else
    sum = 0
    for at = 1, span - turned do sum = sum + read(p.count, v, 8 + bytes * at) end
  end
  if sum + cost > p[1] then return end
  local newer = start + turned * slot
  local between = string.rep('\0', bytes * (turned - 1))
  local kept = string.sub(v, 8 + bytes, 7 + bytes * (1 + span - turned))
  return pack(p.head, newer, sum + cost, cost) .. between .. kept, newer, start
end
-- Adopts the value of a limit with another count size. A full count stays full.
local function adopt(p, v)
  local span, bytes = p[3], (#v - 7) / (p[3] + 1)
  if bytes ~= 1 and bytes ~= 2 and bytes ~= 4 then return end
  local counts, sum = {}, 0
  for at = 1, span do
    local count = read('<I' .. bytes, v, 8 + bytes * at)
    local most = p.full > 4294967295 and p[1] - sum or p.full
    count = count == 256 ^ bytes - 1 and most or math.min(count, most)
    counts[at], sum = pack(p.count, count), sum + count
  end
  return string.sub(v, 1, 7) .. pack(p.count, math.min(sum, p.full)) .. table.concat(counts)
end
return prepare, decide, adopt
