-- value: TAT in microseconds (7 bytes), plus its fraction in 1/scale (5 bytes, or 6) if the interval is not a whole number of
-- them
-- numbers: burst, interval and its fraction, capacity and its fraction, scale
local pack, read = struct.pack, struct.unpack
-- The latest value and its text: keys without debt have the same value after the same cost.
local packed, text
-- If another rate wrote the value, its fraction of a microsecond is in another unit and is rounded up.
local function decide(p, v, cost)
  if cost > p[1] then return end
  if p[3] == 0 then
    local tat = v and read('<I7', v) or 0
    local debt = (tat > now and tat - now or 0) + cost * p[2]
    if debt > p[4] then return end
    local after = now + debt
    if after ~= packed then packed, text = after, pack('<I7', after) end
    return text, after, tat
  end
  local tat, part = 0, 0
  if v then tat, part = read(p.head, v) end
  if part >= p[6] then tat, part = tat + 1, 0 end
  local debt = tat - now
  if debt < 0 then debt, part = 0, 0 end
  local more, more_part = span_of(p, cost)
  debt, part = debt + more, part + more_part
  if part >= p[6] then debt, part = debt + 1, part - p[6] end
  if debt > p[4] or debt == p[4] and part > p[5] then return end
  return pack(p.head, now + debt, part), now + debt, tat
end
return prepare_bucket, decide, adopt_bucket
