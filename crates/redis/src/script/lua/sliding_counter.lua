-- value: start of the current window (7 bytes), the count before (4), the current (4)    numbers: limit, window
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  p.lasts = 2 * p[2]
  return 15
end
-- previous * covered / window, rounded up. A product beyond 2^53 is divided seven bits at a time.
local function weight(previous, covered, window)
  local product = previous * covered
  if product < 9007199254740992 then return math.ceil(product / window) end
  local quotient, rest, unit = 0, 0, 268435456
  while unit >= 1 do
    local digit = math.floor(previous / unit) % 128
    rest = rest * 128 + digit * covered
    quotient = quotient * 128 + math.floor(rest / window)
    rest = rest % window
    unit = unit / 128
  end
  return rest > 0 and quotient + 1 or quotient
end
local function decide(p, v, cost)
  if cost == 0 then return end
  local limit, window = p[1], p[2]
  local start, previous, current = 0, 0, 0
  if v then start, previous, current = read('<I7I4I4', v) end
  local was, elapsed = start, math.max(now - start, 0)
  if elapsed >= 2 * window then
    previous, current, elapsed = 0, 0, elapsed % window
  elseif elapsed >= window then
    previous, current, elapsed = current, 0, elapsed - window
  end
  current = current + cost
  if current > limit then return end
  if previous > 0 and current + weight(previous, window - elapsed, window) > limit then return end
  if now > start then start = now - elapsed end
  return pack('<I7I4I4', start, previous, current), start, was
end
return prepare, decide, nil, weight
