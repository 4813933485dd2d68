-- The previous count, the current one, how much of the current window has passed, and the stored start.
local function view(p, v)
  local start, previous, current = p.open(v)
  local window = p[2]
  local elapsed = math.max(now - start, 0)
  if elapsed >= 2 * window then return 0, 0, elapsed % window, start end
  if elapsed >= window then return current, 0, elapsed - window, start end
  return previous, current, elapsed, start
end
local function write(p, previous, current, elapsed, start)
  if now > start then start = now - elapsed end
  return p.close(start, previous, current)
end
local function room(p, v)
  local previous, current, elapsed = view(p, v)
  local left = math.max(p[1] - current, 0)
  if previous == 0 then return left end
  return math.max(left - weight(previous, p[2] - elapsed, p[2]), 0)
end
local function alike(p, v)
  local _, _, _, start = view(p, v)
  return now < start and 0 or p[2] - now % p[2]
end
local function give_back(p, v, taken, units)
  local previous, current, elapsed, start = view(p, v)
  local begun = math.max(now, start) - elapsed
  if taken >= begun then
    current = math.max(current - units, 0)
  elseif begun - taken <= p[2] then
    previous = math.max(previous - units, 0)
  else
    return v
  end
  return write(p, previous, current, elapsed, start)
end
local function charge(p, v, spent)
  local previous, current, elapsed, start = view(p, v)
  return write(p, previous, math.min(current + spent, 4294967295), elapsed, start)
end
return room, alike, give_back, charge
