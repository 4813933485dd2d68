-- value: start of the current window (7 bytes), the previous count, the current one (2 bytes each; 4 for a limit above 65,535)
-- numbers: limit, window
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  p.lasts, p.most = 2 * p[2], p[1] < 65536 and 65535 or 4294967295
  local bytes = p[1] < 65536 and 2 or 4
  p.head = '<I7I' .. bytes .. 'I' .. bytes
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
  if cost == 0 then return end
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
-- Adopts the value of a limit with another count size. A count that does not fit becomes the largest one that does, which is
-- not less than the limit.
local function adopt(p, v)
  if #v ~= 11 and #v ~= 15 then return end
  local bytes = (#v - 7) / 2
  local start, previous, current = read('<I7I' .. bytes .. 'I' .. bytes, v)
  return pack(p.head, start, math.min(previous, p.most), math.min(current, p.most))
end
return prepare, decide, adopt, weight
