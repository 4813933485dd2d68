-- value: start of the current window (7 bytes), the previous count, the current one (4 bytes each)
-- numbers: limit, window
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  p.lasts, p.head = 2 * p[2], '<I7I4I4'
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
  local limit, window = p[1], p[2]
  local start, previous, current = 0, 0, 0
  if v then start, previous, current = read(p.head, v) end
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
  return pack(p.head, start, previous, current), start, was
end
-- Adopts a value with counts of two bytes, which earlier versions wrote.
local function adopt(p, v)
  if #v == 11 then return pack(p.head, read('<I7I2I2', v)) end
end
return prepare, decide, adopt, weight
