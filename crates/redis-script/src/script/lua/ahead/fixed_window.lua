-- The count, the time left, and the stored start.
local function current(p, v)
  local start, count, window, first_hit = 0, 0, p[2], p[3] == 1
  if v then start, count = struct.unpack(p.head, v) end
  if p.from then return start < p.from and 0 or count, (now < p[5] and p[5] or p[6]) - now, start end
  if now >= start + window or first_hit and count == 0 then
    return 0, first_hit and window or window - now % window, start
  end
  return count, start + window - now, start
end
local function room(p, v) return math.max(p[1] - current(p, v), 0) end
local function alike(p, v)
  local count, left = current(p, v)
  return p[3] == 1 and count == 0 and 0 or left
end
local function give_back(p, v, taken, units)
  local count, _, start = current(p, v)
  if taken < start or count == 0 or count == p.full then return v end
  return struct.pack(p.head, start, math.max(count - units, 0))
end
local function charge(p, v, spent)
  local count, _, start = current(p, v)
  if count == 0 then start = math.max(start, p.begin) end
  return struct.pack(p.head, start, math.min(count + spent, p.most))
end
return room, alike, give_back, charge
