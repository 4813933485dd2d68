return function(p, v, cost)
  local start, count = struct.unpack(p.head, v)
  if count == p.full or p.from and start < p.from or not p.from and now >= start + p[2] then return v end
  return struct.pack(p.head, start, math.max(count - cost, 0))
end
