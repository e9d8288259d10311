-- hand_over(lock, queue, counter, sharers): give a lock that is free, or shared by so many, to its first live waiter and
-- tell that one; one who shares it, from then on, lets those behind it in who may share it too. Without anybody, delete
-- it. Says whether somebody holds it.
local function hand_over(lock, queue, counter, sharers)
    local count, now, token = sharers or 0
    while true do
        local head
        if count == 0 then head = redis.call('ZPOPMIN', queue)[1] else head = redis.call('ZRANGE', queue, 0, 0)[1] end
        if not head then break end
        local ttl, limit, channel, holder = string.match(head, '^(%d+)/?(%d*):([^:]*):(.*)$')
        if count > 0 and (limit == '' or count >= tonumber(limit)) then
            -- It stands in the way of all behind it, unless its process is gone.
            if redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then break end
            redis.call('ZREM', queue, head)
        else
            if not token then
                local minted
                now = clock()
                minted, token = pcall(mint, counter, now)
                -- Redis is out of memory: free the lock all the same. The waiters look again by themselves.
                if not minted then break end
            end
            if count > 0 then redis.call('ZREM', queue, head) end
            local grant = string.format('%s %s %.0f %s', token, ttl, now, holder)
            -- Nobody receives it: the waiter's process is gone.
            if tell(channel, grant) then
                local own = holder .. ':' .. token
                if limit == '' then
                    redis.call('SET', lock, own, 'PX', ttl)
                    return true
                end
                local shares = lock .. '\31shares'
                if count == 0 then redis.call('DEL', shares) end
                redis.call('ZADD', shares, now + ttl * 1000, own)
                count, token = count + 1, nil
            end
        end
    end
    if count == 0 then
        redis.call('DEL', lock)
        return false
    end
    cover(lock, now or clock())
    return true
end
