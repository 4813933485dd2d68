-- value: start (7 bytes), count (4)             numbers: limit, window, 1 for first-hit
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  p.lasts, p.aligned = p[2], p[3] ~= 1 and p[2] or nil
  return 11
end
local function decide(p, v, cost)
  local limit, window, first_hit = p[1], p[2], p[3] == 1
  local start, count = 0, 0
  if v then start, count = read('<I7I4', v) end
  local was = start
  if now >= start + window or first_hit and count == 0 then count = 0 end
  if count + cost > limit then return end
  if count == 0 then start = math.max(start, first_hit and now or now - now % window) end
  return pack('<I7I4', start, count + cost), start, was
end
return prepare, decide
