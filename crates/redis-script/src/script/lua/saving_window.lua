-- value: the time when nothing is in use any more (7 bytes), count (7), and what a window's end gives back, by the rule that
-- wrote it (7)
-- numbers: burst, window, 1 for first-hit, what a window's end gives back, the highest cost that may wait for its rest
local pack, read = struct.pack, struct.unpack
-- The longest debt, in microseconds.
local LONGEST = 3458764513820540
-- The start of the window of now, and what is in use.
local function current(p, v)
  if not v then return p.begin_now, 0 end
  local ends, count = read('<I7I7', v)
  if ends <= now then return p.begin_now, 0 end
  local start = ends - math.ceil(count / p.lump) * p[2]
  if count == 0 then return math.max(start, p.begin_now), 0 end
  if now >= start + p[2] then
    local passed = math.floor((now - start) / p[2])
    start, count = start + passed * p[2], count - passed * p.lump
  end
  return start, count
end
local function written(p, start, count)
  local ends = start + math.ceil(count / p.lump) * p[2]
  return pack('<I7I7', ends, count) .. p.rule, ends
end
local function prepare(p)
  p.lasts, p.lump = 0, p[4]
  p.begin_now = p[3] == 1 and now or now - now % p[2]
  p.waits = p[5]
  p.rule, p.most = pack('<I7', p.lump), math.min(math.floor(LONGEST / p[2]) * p.lump, 9007199254740992)
  p.current, p.written = current, written
  if went_back then
    -- A window from the clock's future begins now.
    p.moved_to_now = function(v)
      local ends, count = read('<I7I7', v)
      return ends - math.ceil(count / p.lump) * p[2] > now and written(p, p.begin_now, count) or v
    end
  end
  return 21
end
local function decide(p, v, cost)
  local start, count = current(p, v)
  if count + cost > p[1] and (count > 0 or cost > (p.waits or 0)) then return end
  local after, ends = written(p, start, count + cost)
  return after, ends, v and (read('<I7', v))
end
-- Adopts the value of a rule whose windows give back something else: what is in use counts as taken now, as
-- `FixedWindow::keep` in tidegate-core does.
local function adopt(p, v)
  if #v ~= 21 then return end
  local _, count = current({p[1], p[2], p[3], lump = read('<I7', v, 15), begin_now = p.begin_now}, v)
  return written(p, p.begin_now, math.min(count, p.most)), true
end
return prepare, decide, adopt
