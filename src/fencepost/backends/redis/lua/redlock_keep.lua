-- Write the token that follows from a majority's answers, if this node's key still belongs to the attempt.
-- KEYS: lock, counter
-- ARGV: holder:-attempt, holder:token, token
-- Answers: 1; or 0 if the key does not belong to it, and nothing changed.
-- needs: remember
local value = redis.call('GET', KEYS[1])
if value == ARGV[2] then return 1 end
if value ~= ARGV[1] then return 0 end
remember(KEYS[2], ARGV[3])
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
return 1
