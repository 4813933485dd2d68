-- Changes what a tenant has used of the shares: charges a cost, refunds one, or forgets all. KEYS: the common state and the tenant.
-- ARGV: their numbers; `charge`, `refund` or `reset`; and the cost. The limit itself is changed apart. KEYS[3], if present, identifies this
-- request: if it arrives twice, only one change is made.
local function numbers(text) return {struct.unpack('<dddd', text)} end
local c, wrong = common.common(numbers(ARGV[1]), KEYS[1])
local t
if c then t, wrong = tenant.tenant(numbers(ARGV[2]), KEYS[2], c) end
if type(wrong) == 'table' then return wrong end
if t and (not KEYS[3] or redis.call('SET', KEYS[3], '', 'PX', 10000, 'NX')) then
  if ARGV[3] == 'reset' then
    -- What it is expected to be charged stays, and when it asked, so that its weight counts once.
    t.share, t.guaranteed, t.ceiled = 0, 0, 0
  else
    local change = ARGV[3] == 'charge' and charge or refund
    change(c, t, tonumber(ARGV[4]))
  end
  close(c, t)
end
return {time[1], time[2], {wrong or false}}
