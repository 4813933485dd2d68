-- The sum of the newest `slots` counts.
local function total(p, counts, slots)
  local sum = 0
  for at = 1, slots do sum = sum + struct.unpack(p.count, counts, p[4] * (at - 1) + 1) end
  return math.min(sum, p.full)
end
-- The start, the sum and the counts, newest first, after the slots have moved on.
local function turn(p, v)
  local slot, span, bytes = p[2], p[3], p[4]
  local none = string.rep('\0', bytes * span)
  if not v then return now - now % slot, 0, none end
  local start, sum = struct.unpack('<I7I' .. bytes, v)
  local counts = string.sub(v, 8 + bytes)
  local turned = now - start
  turned = turned < slot and 0 or math.floor(turned / slot)
  if turned >= span then return now - now % slot, 0, none end
  if sum == p.full then
    sum = total(p, counts, span - turned)
  else
    for at = span - turned + 1, span do sum = sum - struct.unpack(p.count, counts, bytes * (at - 1) + 1) end
  end
  local kept = string.sub(counts, 1, bytes * (span - turned))
  return start + turned * slot, sum, string.rep('\0', bytes * turned) .. kept
end
local function write(p, start, sum, counts) return struct.pack('<I7I' .. p[4], start, sum) .. counts end
-- The counts with a different one at a position (0 is the newest).
local function with(p, counts, at, count)
  local bytes = p[4]
  return string.sub(counts, 1, bytes * at) .. struct.pack(p.count, count) .. string.sub(counts, bytes * (at + 1) + 1)
end
local function room(p, v)
  local _, sum = turn(p, v)
  return math.max(p[1] - sum, 0)
end
local function alike(p, v)
  local start = v and struct.unpack('<I7', v) or 0
  return now < start and 0 or p[2] - now % p[2]
end
local function give_back(p, v, taken, units)
  local start, sum, counts = turn(p, v)
  local behind = math.max(math.ceil((start - taken) / p[2]), 0)
  if behind < p[3] then
    local count = struct.unpack(p.count, counts, p[4] * behind + 1)
    if count < p.full then counts = with(p, counts, behind, count - math.min(count, units)) end
    sum = sum == p.full and total(p, counts, p[3]) or sum - math.min(count, units)
  end
  return write(p, start, sum, counts)
end
local function charge(p, v, spent)
  local start, sum, counts = turn(p, v)
  if p.full > 4294967295 then spent = math.min(spent, p[1] - sum) end
  counts = with(p, counts, 0, math.min(struct.unpack(p.count, counts, 1) + spent, p.full))
  return write(p, start, total(p, counts, p[3]), counts)
end
return room, alike, give_back, charge
