-- Counts in the size of this limit's.
local limit, slot, span, bytes = read('<dddd', ARGV[1])
local most, full, rep = limit - cost, 256 ^ bytes - 1, string.rep
if limit == full then full = full + 1 end
local count, form = '<I' .. bytes, '<I7I' .. bytes .. 'I' .. bytes
if most >= 0 then none, lasts = rep('\0', 7 + (span + 1) * bytes), slot * span end
-- For each key:
local start, sum, newest = read(form, there or none)
local elapsed = now - start
if elapsed < slot then
  if sum <= most then value, head, was = pack(form, start, sum + cost, newest + cost), start, start end
elseif elapsed >= lasts then
  head, was = now - now % slot, start
  value = pack(form, head, cost, cost) .. rep('\0', bytes * (span - 1))
else
  local turned = math.floor(elapsed / slot)
  if sum < full then
    for at = span - turned + 1, span do sum = sum - read(count, there, 8 + bytes * at) end
  else
    sum = 0
    for at = 1, span - turned do sum = sum + read(count, there, 8 + bytes * at) end
  end
  if sum <= most then
    head, was = start + turned * slot, start
    value = pack(form, head, sum + cost, cost) .. rep('\0', bytes * (turned - 1)) .. string.sub(there, 8 + bytes, 7 + bytes * (1 + span - turned))
  end
end
