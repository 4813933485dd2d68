-- value: start (7 bytes), count (4 bytes; 7 for a limit above 4,294,967,295)
-- A full count, if it is above the limit, stands for any number, after a charge.
-- numbers: limit, window, 1 for first-hit or 2 for a calendar, three boundaries
local pack, read = struct.pack, struct.unpack
local function prepare(p)
  p.lasts, p.aligned = p[2], p[3] == 0 and p[2] or nil
  p.begin = p[3] == 1 and now or now - now % p[2]
  -- What began before `from` has ended. Before all three boundaries, nothing has.
  if p[3] == 2 then
    p.from = now < p[4] and 0 or now < p[5] and p[4] or now < p[6] and p[5] or p[6]
    p.begin = now < p[4] and now or p.from
  end
  local wide = p[1] > 4294967295
  p.head, p.most = wide and '<I7I7' or '<I7I4', wide and 9007199254740992 or 4294967295
  p.full = p[1] < p.most and p.most or nil
  return wide and 14 or 11
end
local function decide(p, v, cost)
  local limit, window, first_hit = p[1], p[2], p[3] == 1
  local start, count = 0, 0
  if v then start, count = read(p.head, v) end
  local was = start
  if p.from then
    if start < p.from then count = 0 end
  elseif now >= start + window or first_hit and count == 0 then
    count = 0
  end
  if count + cost > limit then return end
  if count == 0 then start = math.max(start, p.begin) end
  return pack(p.head, start, count + cost), start, was
end
-- Adopts the value of a limit with another count size. A full count stays full.
local function adopt(p, v)
  if #v ~= 11 and #v ~= 14 then return end
  local start, count = read(#v == 11 and '<I7I4' or '<I7I7', v)
  if #v == 11 and count == 4294967295 then count = p.most end
  return pack(p.head, start, math.min(count, p.most))
end
return prepare, decide, adopt
