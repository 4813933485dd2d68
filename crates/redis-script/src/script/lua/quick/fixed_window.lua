-- A count of four bytes, and windows that follow the clock.
local limit, window, kind = read('<ddd', ARGV[1])
local most, over, begin = limit - cost, now - window, now - now % window
if kind == 0 and limit <= 4294967295 and most >= 0 then none, lasts = string.rep('\0', 11), window end
-- For each key:
local start, count = read('<I7I4', there or none)
if start <= over then count = 0 end
if count <= most then
  head, was = (count > 0 or start > begin) and start or begin, start
  value = pack('<I7I4', head, count + cost)
end
