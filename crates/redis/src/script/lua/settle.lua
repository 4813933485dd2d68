-- Gives a holder's permits back, or holds them anew from now on. ARGV: the hold, 1 to hold anew, the holder's name (8 bytes).
-- The reply has whether there were any that had not expired: the place of one that has may be another's already.
local p = {0, tonumber(ARGV[1])}
local held, wrong = log_of.open(p, KEYS[1])
if type(wrong) == 'table' then return wrong end
if held then wrong = log_of.settle(p, held, ARGV[3], ARGV[2] == '1') and 'yes' or 'no' end
return {time[1], time[2], {wrong}}
