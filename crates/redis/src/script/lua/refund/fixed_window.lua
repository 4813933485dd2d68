return function(p, v, cost)
  local start, count = struct.unpack('<I7I4', v)
  if p.from and start < p.from or not p.from and now >= start + p[2] then return v end
  return struct.pack('<I7I4', start, math.max(count - cost, 0))
end
