local function room(p, v)
  local _, count = p.current(p, v)
  return math.max(p[1] - count, 0)
end
local function alike(p, v)
  local start, count = p.current(p, v)
  if count == 0 then return p[3] == 1 and 0 or p.begin_now + p[2] - now end
  return start + p[2] - now
end
-- What windows gave back since the units were taken is deducted.
local function give_back(p, v, taken, units)
  local start, count = p.current(p, v)
  local back = units - math.max(math.ceil((start - taken) / p[2]), 0) * p.lump
  if count == 0 or count == 9007199254740992 then return v end
  return (p.written(p, start, math.max(count - math.max(back, 0), 0)))
end
local function charge(p, v, spent)
  local start, count = p.current(p, v)
  return (p.written(p, start, math.min(count + spent, p.most)))
end
return room, alike, give_back, charge
