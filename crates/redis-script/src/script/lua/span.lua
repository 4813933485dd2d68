-- The span of `cost` emissions, in microseconds and 1/scale of one. It is computed ten bits at a time, so that no product
-- reaches 2^53.
local function span_of(p, cost)
  local quotient, rest, unit, scale = 0, 0, 1073741824, p[6]
  if cost >= 1099511627776 then unit = 1125899906842624 end
  while unit >= 1 do
    local digit = math.floor(cost / unit) % 1024
    rest = rest * 1024 + digit * p[3]
    quotient = quotient * 1024 + math.floor(rest / scale)
    rest = rest % scale
    unit = unit / 1024
  end
  return cost * p[2] + quotient, rest
end

-- Both buckets' values: seven bytes, plus five more if the interval is not a whole number of microseconds, or six if five do
-- not hold every fraction.
local function prepare_bucket(p)
  p.lasts = 0
  -- The longest debt of decisions.
  p.ahead = p[5] > 0 and p[4] + 1 or p[4]
  if p[3] == 0 then return 7 end
  local bytes = p[6] <= 1099511627776 and 5 or 6
  p.head = '<I7I' .. bytes
  return 7 + bytes
end
-- Adopts a value that another rate wrote. A fraction in another unit is rounded up.
local function adopt_bucket(p, v)
  local tat, part = 0, 0
  if #v == 7 then
    tat = struct.unpack('<I7', v)
  elseif #v == 12 or #v == 13 then
    tat, part = struct.unpack('<I7I' .. #v - 7, v)
  else
    return
  end
  if p[3] == 0 then return struct.pack('<I7', part > 0 and tat + 1 or tat) end
  if part >= p[6] then tat, part = tat + 1, 0 end
  return struct.pack(p.head, tat, part)
end
