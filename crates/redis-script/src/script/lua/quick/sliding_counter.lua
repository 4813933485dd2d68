-- Counts of two bytes, none of them full, and none that makes a product beyond 2^53.
local limit, window = read('<dd', ARGV[1])
local most, full, exact = limit - cost, 65535, 9007199254740992 / window
if limit < full and most >= 0 then none, lasts = string.rep('\0', 11), 2 * window end
-- For each key:
local start, previous, current = read('<I7I2I2', there or none)
if previous == full or current == full or previous >= exact then
  rest[#rest + 1] = i
else
  local elapsed = now - start
  if elapsed >= window then
    if elapsed >= lasts then
      previous, current, elapsed = 0, 0, elapsed % window
    else
      previous, current, elapsed = current, 0, elapsed - window
    end
  elseif elapsed < 0 then
    elapsed = 0
  end
  if current <= most and (previous == 0 or current + math.ceil(previous * (window - elapsed) / window) <= most) then
    head, was = now > start and now - elapsed or start, start
    value = pack('<I7I2I2', head, previous, current + cost)
  end
end
