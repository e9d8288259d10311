-- Remember the token that a majority led to, if this node's key still belongs to the attempt.
-- KEYS: lock, counter
-- ARGV: holder:-attempt, holder:token, token
-- Answers: 1, or 0 if it does not, and nothing changed.
-- needs: remember
local value = redis.call('GET', KEYS[1])
if value == ARGV[2] then return 1 end
if value ~= ARGV[1] then return 0 end
remember(KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
