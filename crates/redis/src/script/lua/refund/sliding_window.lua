return function(p, v, cost)
  local slot, span, bytes = p[2], p[3], p[4]
  local start, sum = struct.unpack('<I7I' .. bytes, v)
  local counts, turned = string.sub(v, 8 + bytes), now - start
  turned = turned < slot and 0 or math.min(math.floor(turned / slot), span)
  if turned == span then
    start, sum = now - now % slot, 0
  else
    start = start + turned * slot
    for at = span - turned, span - 1 do sum = sum - struct.unpack(p.count, counts, bytes * at + 1) end
  end
  if sum == 0 then return v end
  counts = string.rep('\0', bytes * turned) .. string.sub(counts, 1, bytes * (span - turned))
  local left = math.min(cost, sum)
  sum = sum - left
  -- Starts with the newest slot.
  local newest, at = {}, 1
  while left > 0 do
    local count = struct.unpack(p.count, counts, bytes * (at - 1) + 1)
    local gone = math.min(count, left)
    newest[at], left, at = struct.pack(p.count, count - gone), left - gone, at + 1
  end
  return struct.pack('<I7I' .. bytes, start, sum) .. table.concat(newest) .. string.sub(counts, bytes * #newest + 1)
end
