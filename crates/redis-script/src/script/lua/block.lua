-- Blocks of keys for denials, next to a limit of any algorithm, as `tidegate_core::Penalty` has them. value: until when the key is
-- blocked, the first of the denials that count (7 bytes each), their number (4 bytes), and the step of the last block (1 byte)
-- numbers: the spans of three steps (0 for none), the number of denials that block, and the time in which they count
local FORM = '<I7I7I4B'

-- The block of a key, or what is wrong with the key.
local function open(p, key)
  local value = redis.pcall('GET', key)
  if type(value) == 'table' then
    if string.find(value.err, 'WRONGTYPE', 1, true) then return nil, 1 end
    return nil, value
  end
  if not value then return {key = key, value = false, ends = 0, first = 0, count = 0, step = 0} end
  if #value ~= 19 then return nil, foreign(value) end
  local block = {key = key, value = value}
  block.ends, block.first, block.count, block.step = struct.unpack(FORM, value)
  -- A rule may have more steps than the one that is in force.
  while block.step > 0 and p[block.step] == 0 do block.step = block.step - 1 end
  if went_back then
    -- An end from the clock's future would hold until the clock gets there.
    block.ends = math.min(block.ends, now + (p[block.step] or 0))
    block.first = math.min(block.first, now)
  end
  block.value = struct.pack(FORM, block.ends, block.first, block.count, block.step)
  return block
end

-- Counts a denial of a key that is not blocked, and blocks it if that is the last one.
local function denied(p, block)
  local ends, first, count = block.ends, block.first, block.count + 1
  local step = block.step > 0 and now < ends + p[block.step] and block.step or 0
  if count == 1 or now >= first + p[5] then first, count = now, 1 end
  if count >= p[4] then
    local span = step < 3 and p[step + 1] > 0 and p[step + 1] or p[step]
    if step < 3 and p[step + 1] > 0 then step = step + 1 end
    ends, first, count = now + span, 0, 0
  end
  local until_when = math.max(ends, step > 0 and ends + p[step] or 0, count > 0 and first + p[5] or 0)
  redis.call('SET', block.key, struct.pack(FORM, ends, first, count, step), 'PXAT', pxat(until_when))
end
return {beside = true, open = open, denied = denied}
