-- The span of `cost` emissions, in microseconds and 1/scale of one. Ten bits at a time: no product reaches 2^53.
local function span_of(p, cost)
  local quotient, rest, unit, scale = 0, 0, 1073741824, p[6]
  while unit >= 1 do
    local digit = math.floor(cost / unit) % 1024
    rest = rest * 1024 + digit * p[3]
    quotient = quotient * 1024 + math.floor(rest / scale)
    rest = rest % scale
    unit = unit / 1024
  end
  return cost * p[2] + quotient, rest
end

-- Both buckets' values: seven bytes, and six more where the interval is no whole number of microseconds.
local function prepare_bucket(p)
  p.lasts = 0
  return p[3] == 0 and 7 or 13
end
local function adopt_bucket(p, v)
  if #v == 7 then return p[3] > 0 and v .. '\0\0\0\0\0\0' end
  if #v ~= 13 or p[3] > 0 then return end
  local tat, part = struct.unpack('<I7I6', v)
  return struct.pack('<I7', part > 0 and tat + 1 or tat)
end
