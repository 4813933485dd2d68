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
