-- value: start of the current window (7 bytes), the previous count, the current one (2 bytes each; 4 for a limit from 65,535 on)
-- A count of two bytes that is full stands for any number, after a charge; it counts as the highest one.
-- numbers: limit, window
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  local bytes = p[1] < 65535 and 2 or 4
  local head, full, most = '<I7I' .. bytes .. 'I' .. bytes, 256 ^ bytes - 1, 4294967295
  p.lasts, p.aligned = 2 * p[2], p[2]
  -- The start, the previous count and the current one of a value, and the value of them.
  function p.open(v)
    if not v then return 0, 0, 0 end
    local start, previous, current = read(head, v)
    return start, previous == full and most or previous, current == full and most or current
  end
  function p.close(start, previous, current)
    return pack(head, start, math.min(previous, full), math.min(current, full))
  end
  return 7 + 2 * bytes
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
  local start, previous, current = p.open(v)
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
  return p.close(start, previous, current), start, was
end
-- Adopts the value of a limit with another count size. A full count stays full.
local function adopt(p, v)
  if #v ~= 11 and #v ~= 15 then return end
  local bytes = (#v - 7) / 2
  local start, previous, current = read('<I7I' .. bytes .. 'I' .. bytes, v)
  local function wide(count) return count == 256 ^ bytes - 1 and 4294967295 or count end
  return p.close(start, wide(previous), wide(current))
end
return prepare, decide, adopt, weight
