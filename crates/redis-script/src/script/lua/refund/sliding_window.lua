return function(p, v, cost)
  local slot, span, bytes = p[2], p[3], p[4]
  local start, sum = struct.unpack('<I7I' .. bytes, v)
  local counts, turned = string.sub(v, 8 + bytes), now - start
  turned = turned < slot and 0 or math.min(math.floor(turned / slot), span)
  if turned == span then
    start, sum = now - now % slot, 0
  else
    start = start + turned * slot
    sum = 0
    for at = 0, span - turned - 1 do sum = sum + struct.unpack(p.count, counts, bytes * at + 1) end
  end
  if sum == 0 then return v end
  counts = string.rep('\0', bytes * turned) .. string.sub(counts, 1, bytes * (span - turned))
  local left = math.min(cost, sum)
  -- Starts with the newest slot. A full count stays, because its true value is unknown.
  local newest, at = {}, 1
  while left > 0 do
    local count = struct.unpack(p.count, counts, bytes * (at - 1) + 1)
    local gone = math.min(count, left)
    if count < p.full then sum, count = sum - gone, count - gone end
    newest[at], left, at = struct.pack(p.count, count), left - gone, at + 1
  end
  counts = table.concat(newest) .. string.sub(counts, bytes * #newest + 1)
  return struct.pack('<I7I' .. bytes, start, math.min(sum, p.full)) .. counts
end
