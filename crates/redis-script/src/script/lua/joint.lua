-- One decision over several limits (`count`), each key once: all admit and are charged, or none is. ARGV: for each key the kind
-- (a capital letter for a shadow limit, which takes what fits and never denies), the limit's numbers and the cost; and `look` at
-- the end if nothing is to be taken. Behind all limits come the blocks of those whose rules block keys for denials: the letter `b`,
-- the numbers of block.lua, and the index of the limit. A denial by the limit counts there, whatever the others say. Behind each of them
-- is the line of its limit, if it has one, in the same form with the letter `q`: while others wait, no cost is admitted. A limit that tenants
-- share has two parts behind all limits instead, in the same form: the common state of shares.lua (`o`) and the tenant (`h`). The reply: the
-- time, and for each key its value before the call (for a log the answer), or 1 for a key of another type, 2 for a value that is not of this limit.
local replies, parts, denials, asks, admitted, broken, takes = {}, {}, {}, {}, true, false, ARGV[3 * count + 1] ~= 'look'
for i = 1, count do
  local letter, numbers = ARGV[3 * i - 2], ARGV[3 * i - 1]
  local kind, shadow = algorithm(string.lower(letter)), string.find(letter, '%u')
  local part = {kind = kind, shadow = shadow, p = {struct.unpack(#numbers == 48 and '<dddddd' or '<dddddddd', numbers)}}
  part.cost = tonumber(ARGV[3 * i])
  part.p.looks = not takes or part.cost == 0
  parts[i] = part
  if kind.line then
    local line, wrong = kind.line(part.p, KEYS[i])
    if type(wrong) == 'table' then return wrong end
    replies[i] = wrong or struct.pack('<I8I8', line.count, line.cost)
    local of = parts[part.cost]
    if line and line.count > 0 and of.cost > 0 then
      of.blocked, of.fits = true, false
      admitted = admitted and of.shadow
    end
  elseif kind.common then
    local common, wrong = kind.common(part.p, KEYS[i])
    if type(wrong) == 'table' then return wrong end
    parts[part.cost].common, replies[i] = common, wrong or ''
  elseif kind.tenant then
    local of, tenant, wrong = parts[part.cost], nil, ''
    if of.common then tenant, wrong = kind.tenant(part.p, KEYS[i], of.common) end
    if type(wrong) == 'table' then return wrong end
    replies[i] = wrong
    if tenant then
      local ask = kind.request.ask(of.common, tenant, of.cost, takes and wants_more and wants_more[i])
      ask.of, ask.close, ask.admits = of, kind.request.close, of.fits
      asks[#asks + 1], replies[i] = ask, ask.reply
      if ask.refused then
        of.blocked, of.fits = true, false
        admitted = admitted and of.shadow
      end
    end
  elseif kind.denied then
    local block, wrong = kind.open(part.p, KEYS[i])
    if type(wrong) == 'table' then return wrong end
    replies[i] = wrong or block.value
    local of = parts[part.cost]
    if block and block.ends > now then
      of.blocked, of.fits = true, false
      admitted = admitted and of.shadow
    elseif block and takes and of.cost > 0 and not of.fits then
      part.block = block
      denials[#denials + 1] = part
    end
  elseif kind.open then
    local log, wrong = kind.open(part.p, KEYS[i])
    if type(wrong) == 'table' then return wrong end
    part.log, replies[i] = log, wrong
    if log then
      part.fits, replies[i] = kind.take(part.p, log, part.cost)
      admitted = admitted and (part.fits or shadow)
    end
  else
    local size, before = kind.prepare(part.p), redis.pcall('GET', KEYS[i])
    if type(before) == 'table' then
      if not string.find(before.err, 'WRONGTYPE', 1, true) then return before end
      before = 1
    else
      part.there = before
      before, part.as_is = own(part.p, before, size, kind.adopt, KEYS[i])
      if before == nil then
        before = foreign(part.there)
      else
        part.after, part.head, part.was = kind.decide(part.p, before, part.cost)
        part.fits = part.after
        admitted = admitted and (part.fits or shadow)
      end
    end
    replies[i] = before
  end
  broken = broken or type(replies[i]) == 'number'
end
admitted = admitted and not broken
if takes and not broken then
  for _, part in ipairs(denials) do part.kind.denied(part.p, part.block) end
  for _, ask in ipairs(asks) do ask.close(ask, ask.admits, admitted and ask.of.fits) end
end
if admitted and takes then
  for i, part in ipairs(parts) do
    if part.log and not part.blocked then
      part.kind.close(part.p, part.log)
    elseif part.after and part.fits and part.cost > 0 then
      local value = part.as_is and part.after or whole(replies[i], part.after)
      put(part.p, KEYS[i], part.there, value, part.head, part.as_is and part.there and part.was)
    end
  end
end
